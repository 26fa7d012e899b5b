package kubeapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

const pods = "/api/v1/namespaces/shop/pods"

func names(list *corev1.PodList) (all []string) {
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
	}
	return all
}

func TestAPI_ListWithSelectors(t *testing.T) {
	e := newEnv(t, nil)
	failed := staticPod("b", map[string]string{"app": "db"})
	failed.Status.Phase = corev1.PodFailed
	other := staticPod("c", map[string]string{"app": "web"})
	other.Namespace = "lab"
	e.setPods(failed, staticPod("a", map[string]string{"app": "web"}), other)
	for name, c := range map[string]struct {
		namespace string
		opts      metav1.ListOptions
		names     []string
	}{
		"all namespaces, sorted":  {"", metav1.ListOptions{}, []string{"c", "a", "b"}},
		"one namespace":           {"shop", metav1.ListOptions{}, []string{"a", "b"}},
		"label":                   {"", metav1.ListOptions{LabelSelector: "app=web"}, []string{"c", "a"}},
		"label set":               {"shop", metav1.ListOptions{LabelSelector: "app in (db,cache)"}, []string{"b"}},
		"name":                    {"", metav1.ListOptions{FieldSelector: "metadata.name=a"}, []string{"a"}},
		"phase and node":          {"", metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName + ",status.phase!=Failed"}, []string{"c", "a"}},
		"other node":              {"", metav1.ListOptions{FieldSelector: "spec.nodeName=x"}, nil},
		"limit is an upper bound": {"shop", metav1.ListOptions{Limit: 1}, []string{"a", "b"}},
	} {
		list, err := e.client.CoreV1().Pods(c.namespace).List(t.Context(), c.opts)
		require.NoError(t, err, name)
		assert.Equal(t, c.names, names(list), name)
		assert.Empty(t, list.Continue, name)
		assert.NotEmpty(t, list.ResourceVersion, name)
	}
}

func TestAPI_GetPod(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil))
	pod, err := e.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "uid-a", string(pod.UID))
	assert.Equal(t, pod.Status.StartTime.Unix(), pod.CreationTimestamp.Unix(), "a manifest has no creation time")
	assert.Equal(t, "uid-a", pod.Annotations["kubernetes.io/config.mirror"], "clients know static pods by it")
	assert.NotEmpty(t, pod.ResourceVersion)
	second, err := e.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, pod.ResourceVersion, second.ResourceVersion, "nothing has changed")
	assert.Contains(t, e.get(pods+"/a").body, `"kind":"Pod","apiVersion":"v1"`)
	assert.Contains(t, e.get(pods+"/a?pretty=true").body, "\n  \"kind\": \"Pod\"")
	assert.Contains(t, e.get(pods+"/a/status").body, `"phase":"Running"`)
	assert.Empty(t, e.allPods()[0].Annotations["kubernetes.io/config.mirror"], "pods of the agent are read-only")
}

// The one that is not terminating is shown, and of these the newer one.
func TestAPI_PodsOfOneName(t *testing.T) {
	e := newEnv(t, nil)
	old, young, terminating := staticPod("a", nil), staticPod("a", nil), staticPod("a", nil)
	old.UID, young.UID, terminating.UID = "old", "young", "terminating"
	young.Status.StartTime, terminating.Status.StartTime = &metav1.Time{Time: old.Status.StartTime.Add(60e9)}, &metav1.Time{Time: old.Status.StartTime.Add(120e9)}
	terminating.DeletionTimestamp = &metav1.Time{Time: old.Status.StartTime.Time}
	for _, all := range [][]*corev1.Pod{{old, young, terminating}, {terminating, young, old}, {young, terminating, old}} {
		e.setPods(all...)
		list, err := e.client.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		assert.Equal(t, "young", string(list.Items[0].UID))
	}
}

func TestAPI_OtherObjects(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil))
	core := e.client.CoreV1()
	spaces, err := core.Namespaces().List(t.Context(), metav1.ListOptions{FieldSelector: "status.phase=Active"})
	require.NoError(t, err)
	require.Len(t, spaces.Items, 4)
	assert.Equal(t, []string{"default", "kube-node-lease", "kube-system", "shop"}, []string{spaces.Items[0].Name, spaces.Items[1].Name, spaces.Items[2].Name, spaces.Items[3].Name})
	assert.Equal(t, corev1.NamespaceActive, spaces.Items[2].Status.Phase)
	_, err = core.Namespaces().Get(t.Context(), "shop", metav1.GetOptions{})
	require.NoError(t, err)
	node, err := core.Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotEmpty(t, node.UID)
	assert.False(t, node.CreationTimestamp.IsZero())
	cm, err := core.ConfigMaps("shop").Get(t.Context(), "conf", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a": "b"}, cm.Data)
	assert.Equal(t, map[string][]byte{"raw": {0xff}}, cm.BinaryData)
	_, err = core.ConfigMaps("shop").Get(t.Context(), "password", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "a Secret is no ConfigMap: %v", err)
	_, err = core.Secrets("shop").List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "secrets are not served")
}

func TestAPI_Tables(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", map[string]string{"app": "web"}))
	const accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	table := func(path string) metav1.Table {
		t.Helper()
		res := e.get(path, "Accept", accept)
		require.Equal(t, http.StatusOK, res.code, res.body)
		var got metav1.Table
		require.NoError(t, json.Unmarshal([]byte(res.body), &got))
		require.Equal(t, metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}, got.TypeMeta)
		return got
	}
	got := table("/api/v1/pods")
	var columns []string
	for _, c := range got.ColumnDefinitions {
		if c.Priority == 0 {
			columns = append(columns, c.Name)
		}
	}
	assert.Equal(t, []string{"Name", "Ready", "Status", "Restarts", "Age"}, columns)
	require.Len(t, got.Rows, 1)
	assert.Equal(t, []any{"a", "0/1", "Running", "0", duration.HumanDuration(time.Since(startTime())), "<none>", nodeName, "<none>", "<none>"}, got.Rows[0].Cells)
	assert.Contains(t, string(got.Rows[0].Object.Raw), "PartialObjectMetadata")
	assert.Contains(t, string(got.Rows[0].Object.Raw), `"app":"web"`)
	assert.NotContains(t, string(got.Rows[0].Object.Raw), "containers")
	assert.Contains(t, string(table(pods + "/a?includeObject=Object").Rows[0].Object.Raw), "containers")
	assert.Empty(t, table(pods + "/a?includeObject=None").Rows[0].Object.Raw)
	for path, cells := range map[string][]any{
		"/api/v1/namespaces/shop":                 {"shop", "Active", "0s"},
		"/api/v1/nodes/" + nodeName:               {nodeName, "Ready", "<none>", "0s", "v1.37.0+sublet", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"},
		"/api/v1/namespaces/shop/configmaps/conf": {"conf", 2.0, "0s"},
	} {
		row := table(path).Rows[0].Cells
		for i, c := range row {
			if text, ok := c.(string); ok && strings.HasSuffix(text, "s") && len(text) < 4 {
				row[i] = "0s" // the age
			}
		}
		assert.Equal(t, cells, row, path)
	}
	assert.Contains(t, e.get(pods, "Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").body, `"kind":"PartialObjectMetadataList"`)
	assert.Contains(t, e.get(pods+"/a", "Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").body, `"kind":"PartialObjectMetadata"`)
}

func TestAPI_Errors(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil))
	for _, c := range []struct {
		method, path, body string
		header             []string
		code               int
		reason             metav1.StatusReason
		message            string
	}{
		{"GET", pods + "/none", "", nil, 404, metav1.StatusReasonNotFound, `pods "none" not found`},
		{"GET", "/api/v1/endpoints", "", nil, 404, metav1.StatusReasonNotFound, "could not find the requested resource"},
		{"GET", "/apis/apps/v1/deployments", "", nil, 404, metav1.StatusReasonNotFound, "could not find the requested resource"},
		{"GET", "/api/v1/pods/a", "", nil, 404, metav1.StatusReasonNotFound, "could not find the requested resource"},
		{"GET", "/api/v1/namespaces/shop/nodes", "", nil, 404, metav1.StatusReasonNotFound, ""},
		{"GET", pods + "/a/binding", "", nil, 404, metav1.StatusReasonNotFound, ""},
		{"GET", pods + "/a/log/x", "", nil, 404, metav1.StatusReasonNotFound, ""},
		{"GET", pods + "//log", "", nil, 404, metav1.StatusReasonNotFound, ""},
		{"GET", "/api/v1/", "", []string{"Accept", "text/html"}, 200, "", ""},
		{"GET", pods, "", []string{"Accept", "application/vnd.kubernetes.protobuf"}, 406, metav1.StatusReasonNotAcceptable, "application/json"},
		{"GET", pods, "", []string{"Accept", "application/json;as=Table;v=v2;g=meta.k8s.io"}, 406, metav1.StatusReasonNotAcceptable, ""},
		{"GET", pods, "", []string{"Impersonate-User", "bob"}, 403, metav1.StatusReasonForbidden, "impersonation"},
		{"GET", pods + values("labelSelector", "a in b"), "", nil, 400, metav1.StatusReasonBadRequest, "unable to parse requirement"},
		{"GET", pods + values("fieldSelector", "spec.foo=x"), "", nil, 400, metav1.StatusReasonBadRequest, "field label not supported: spec.foo"},
		{"GET", pods + values("fieldSelector", "x"), "", nil, 400, metav1.StatusReasonBadRequest, "invalid selector"},
		{"GET", pods + values("continue", "abc"), "", nil, 410, metav1.StatusReasonExpired, "continue"},
		{"GET", pods + "/a" + values("includeObject", "x"), "", []string{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io"}, 400, metav1.StatusReasonBadRequest, "includeObject"},
		{"POST", "/api/v1/nodes", "{}", nil, 405, metav1.StatusReasonMethodNotAllowed, "create of nodes is not supported: a node alone serves them read-only"},
		{"DELETE", "/api/v1/nodes/" + nodeName, "", nil, 405, metav1.StatusReasonMethodNotAllowed, "read-only"},
		{"POST", pods + "/a", "{}", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"PUT", pods, "{}", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"POST", "/api/v1/pods", manifest("a"), nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"DELETE", "/api/v1/pods", "", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"DELETE", "/api/v1/watch/namespaces/shop/pods", "", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"GET", "/api/v1/watch/namespaces/shop/pods/a/log", "", nil, 404, metav1.StatusReasonNotFound, ""},
		{"OPTIONS", pods, "", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"DELETE", pods + "/a/exec", "", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"POST", pods + "/a/log", "", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"PUT", pods + "/a/status", "{}", nil, 403, metav1.StatusReasonForbidden, "observed"},
		{"GET", "/apis/metrics.k8s.io/v1beta1/nodes?watch=true", "", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
		{"GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", nil, 405, metav1.StatusReasonMethodNotAllowed, ""},
	} {
		res := e.do(c.method, c.path, c.body, c.header...)
		name := c.method + " " + c.path
		require.Equal(t, c.code, res.code, name+res.body)
		assert.Equal(t, "application/json", res.header.Get("Content-Type"), name)
		if c.code == http.StatusOK {
			continue
		}
		st := res.status(t)
		assert.Equal(t, c.reason, st.Reason, name)
		assert.Equal(t, int32(c.code), st.Code, name)
		assert.Equal(t, metav1.StatusFailure, st.Status, name)
		assert.Contains(t, st.Message, c.message, name)
	}
}
