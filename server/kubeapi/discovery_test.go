package kubeapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
	"github.com/sublet-dev/agent/stats"
)

// Both forms of discovery say the same.
func TestDiscovery_AggregatedAndLegacy(t *testing.T) {
	e := newEnv(t, nil)
	all := map[string]map[string]string{}
	for name, legacy := range map[string]bool{"aggregated": false, "legacy": true} {
		client, err := discovery.NewDiscoveryClientForConfig(e.config)
		require.NoError(t, err)
		client.UseLegacyDiscovery = legacy
		groups, lists, err := client.ServerGroupsAndResources()
		require.NoError(t, err, name)
		assert.Len(t, groups, 5, name)
		all[name] = map[string]string{}
		for _, list := range lists {
			for _, r := range list.APIResources {
				all[name][list.GroupVersion+" "+r.Name] = fmt.Sprint(r.Kind, r.Namespaced, r.Verbs, r.ShortNames)
			}
		}
		version, err := client.ServerVersion()
		require.NoError(t, err)
		assert.Equal(t, "37", version.Minor)
	}
	assert.Equal(t, all["legacy"], all["aggregated"])
	assert.Equal(t, "Podtrue [create delete deletecollection get list patch update watch] [po]", all["legacy"]["v1 pods"])
	for _, name := range []string{"v1 pods/exec", "v1 pods/log", "v1 pods/ephemeralcontainers", "v1 nodes", "v1 events", "v1 configmaps", "v1 namespaces", "coordination.k8s.io/v1 leases", "metrics.k8s.io/v1beta1 pods", "authorization.k8s.io/v1 selfsubjectaccessreviews"} {
		assert.Contains(t, all["legacy"], name)
	}
	assert.Contains(t, e.get("/apis/metrics.k8s.io").body, `"preferredVersion":{"groupVersion":"metrics.k8s.io/v1beta1"`)
}

// What the node does not have is not offered.
func TestDiscovery_LeavesOutWhatIsNotServed(t *testing.T) {
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) {
		*cfg = kubeapi.Config{NodeName: nodeName, Pods: cfg.Pods}
	})
	client := e.client.Discovery()
	list, err := client.ServerResourcesForGroupVersion("v1")
	require.NoError(t, err)
	var names []string
	for _, r := range list.APIResources {
		names = append(names, r.Name)
	}
	assert.Equal(t, []string{"pods", "pods/attach", "pods/exec", "pods/log", "pods/portforward", "pods/status", "namespaces", "services", "secrets"}, names)
	assert.Equal(t, metav1.Verbs{"get", "list", "watch"}, list.APIResources[0].Verbs)
	assert.Equal(t, 404, e.get("/apis/metrics.k8s.io/v1beta1").code)
	assert.Equal(t, 404, e.get("/api/v1/events").code)
	for _, cfg := range []kubeapi.Config{{NodeName: "n"}, {Pods: e.allPods}} {
		_, err := kubeapi.New(cfg)
		require.ErrorContains(t, err, "required")
	}
}

// kubectl explains and validates with it, and computes patches.
func TestOpenAPI(t *testing.T) {
	e := newEnv(t, nil)
	assert.JSONEq(t, `{"paths":{"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1"},"apis/coordination.k8s.io/v1":{"serverRelativeURL":"/openapi/v3/apis/coordination.k8s.io/v1"}}}`, e.get("/openapi/v3").body)
	lease := e.get("/openapi/v3/apis/coordination.k8s.io/v1").body
	assert.Contains(t, lease, `"x-kubernetes-group-version-kind":[{"group":"coordination.k8s.io","kind":"Lease","version":"v1"}]`)
	assert.Contains(t, lease, `"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}":`)
	assert.NotContains(t, lease, "io.k8s.api.core.v1.Pod\"")
	type property struct {
		Type, Format, Description string
		AllOf                     []map[string]string
		Items                     map[string]any
		AdditionalProperties      map[string]any
		MergeKey                  string `json:"x-kubernetes-patch-merge-key"`
		Strategy                  string `json:"x-kubernetes-patch-strategy"`
	}
	var doc struct {
		Paths      map[string]map[string]struct{ Parameters []struct{ Name, In string } }
		Components struct {
			Schemas map[string]struct {
				Description string
				Required    []string
				Properties  map[string]property
				GVK         []map[string]string `json:"x-kubernetes-group-version-kind"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(e.get("/openapi/v3/api/v1").body), &doc))
	// Without this parameter kubectl asks for a document that is not served, and does not say what the server refuses.
	for _, path := range []string{"/api/v1/namespaces/{namespace}/pods/{name}", "/api/v1/nodes/{name}", "/api/v1/namespaces/{namespace}/secrets/{name}"} {
		patch := doc.Paths[path]["patch"]
		require.Len(t, patch.Parameters, 3, path)
		assert.Equal(t, "fieldValidation", patch.Parameters[2].Name)
	}
	pod := doc.Components.Schemas["io.k8s.api.core.v1.Pod"]
	assert.Equal(t, []map[string]string{{"group": "", "version": "v1", "kind": "Pod"}}, pod.GVK)
	assert.Equal(t, "string", pod.Properties["kind"].Type, "of the embedded type")
	assert.Contains(t, pod.Description, "collection of containers")
	assert.Equal(t, "#/components/schemas/io.k8s.api.core.v1.PodSpec", pod.Properties["spec"].AllOf[0]["$ref"])
	spec := doc.Components.Schemas["io.k8s.api.core.v1.PodSpec"]
	assert.Equal(t, []string{"containers"}, spec.Required)
	assert.Equal(t, "name", spec.Properties["containers"].MergeKey)
	assert.Equal(t, "merge", spec.Properties["containers"].Strategy)
	assert.Equal(t, "array", spec.Properties["containers"].Type)
	assert.Equal(t, "int64", spec.Properties["activeDeadlineSeconds"].Format)
	assert.Equal(t, "boolean", spec.Properties["hostNetwork"].Type)
	assert.Equal(t, map[string]any{"type": "string"}, spec.Properties["nodeSelector"].AdditionalProperties)
	assert.NotEmpty(t, spec.Properties["hostNetwork"].Description)
	meta := doc.Components.Schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
	assert.Equal(t, "date-time", meta.Properties["creationTimestamp"].Format)
	assert.Equal(t, "int-or-string", doc.Components.Schemas["io.k8s.api.core.v1.HTTPGetAction"].Properties["port"].Format)
	assert.Equal(t, "int32", doc.Components.Schemas["io.k8s.api.core.v1.ContainerPort"].Properties["containerPort"].Format)
	assert.Equal(t, map[string]any{"type": "string", "format": "byte"}, doc.Components.Schemas["io.k8s.api.core.v1.ConfigMap"].Properties["binaryData"].AdditionalProperties)
	assert.Equal(t, map[string]any{"type": "string"}, doc.Components.Schemas["io.k8s.api.core.v1.ResourceRequirements"].Properties["limits"].AdditionalProperties)
}

func TestEvents_SelectedAndBounded(t *testing.T) {
	e := newEnv(t, nil)
	client := e.client.CoreV1().Events("")
	record := func(name string, uid string, count int32) {
		e.events.Record(&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Reason: "Started", Type: "Normal", Count: count, Source: corev1.EventSource{Component: "kubelet"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: uid}, FirstTimestamp: metav1.Time{Time: startTime()},
		})
	}
	record("first", "a", 1)
	for i := range 1999 {
		record(fmt.Sprint("e", i), "b", 1)
	}
	record("first", "a", 2) // counted: the newest now
	record("last", "b", 1)
	e.events.Record(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "node.1"}, InvolvedObject: corev1.ObjectReference{Kind: "Node"}})
	list, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Len(t, list.Items, 2000)
	list, err = client.List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=a,type=Normal,source=kubelet,reason=Started"})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	assert.Equal(t, int32(2), list.Items[0].Count)
	assert.Equal(t, startTime().Unix(), list.Items[0].CreationTimestamp.Unix())
	assert.NotEmpty(t, list.Items[0].UID)
	list, err = e.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node"})
	require.NoError(t, err)
	assert.Len(t, list.Items, 1, "an event of a node is in the default namespace")
	_, err = e.client.CoreV1().Events("shop").Get(t.Context(), "e0", metav1.GetOptions{})
	assert.Error(t, err, "the oldest are gone")
}

// The namespaces are there, whatever becomes of the metrics.
func TestNamespaces_WithoutMetrics(t *testing.T) {
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) {
		cfg.Stats = func(context.Context) (stats.Summary, error) {
			return stats.Summary{}, errors.New("the runtime is down")
		}
	})
	e.setPods(staticPod("a", nil))
	list, err := e.client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, ns := range list.Items {
		names = append(names, ns.Name)
	}
	assert.Equal(t, []string{"default", "kube-node-lease", "kube-system", "shop"}, names)
}

// kubectl top.
func TestMetrics(t *testing.T) {
	cpu, memory := uint64(250_000_000), uint64(64<<20)
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) {
		cfg.Stats = summaryOf(stats.Summary{
			Node: stats.NodeStats{CPU: &stats.CPUStats{UsageNanoCores: &cpu}, Memory: &stats.MemoryStats{WorkingSetBytes: &memory}},
			Pods: []stats.PodStats{
				{PodRef: stats.PodReference{Namespace: "shop", Name: "a"}, Containers: []stats.ContainerStats{
					{Name: "main", CPU: &stats.CPUStats{UsageNanoCores: &cpu}, Memory: &stats.MemoryStats{WorkingSetBytes: &memory}}, {Name: "exited"},
				}},
				{PodRef: stats.PodReference{Namespace: "shop", Name: "starting"}, Containers: []stats.ContainerStats{{Name: "main"}}},
			},
		})
	})
	e.setPods(staticPod("a", map[string]string{"app": "web"}))
	body := e.get("/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods" + values("labelSelector", "app=web")).body
	assert.Contains(t, body, `"kind":"PodMetricsList"`)
	assert.Contains(t, body, `"containers":[{"name":"main","usage":{"cpu":"250m","memory":"64Mi"}}]`)
	assert.NotContains(t, body, "starting", "what is not known is left out")
	assert.Contains(t, e.get("/apis/metrics.k8s.io/v1beta1/nodes/"+nodeName).body, `"usage":{"cpu":"250m","memory":"64Mi"}`)
	table := e.get("/apis/metrics.k8s.io/v1beta1/pods", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body
	assert.Contains(t, table, `"cells":["a","250m","64Mi","10s"]`)
}
