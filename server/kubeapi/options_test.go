package kubeapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// SV-12: options that are not valid are the errors of an API server, with the options at fault.
func TestOptions_Invalid(t *testing.T) {
	e := newEnv(t, nil)
	before := e.create("a")
	const merge = "application/merge-patch+json"
	for _, c := range []struct{ method, path, body, contentType, kind, fields string }{
		{"POST", pods + "?dryRun=x", manifest("b"), "", "CreateOptions", "dryRun"},
		{"POST", pods + "?dryRun=", manifest("b"), "", "CreateOptions", "dryRun"},
		{"POST", pods + "?fieldValidation=strict", manifest("b"), "", "CreateOptions", "fieldValidation"},
		{"POST", pods + "?fieldManager=" + strings.Repeat("x", 200), manifest("b"), "", "CreateOptions", "fieldManager"},
		{"PUT", pods + "/a?dryRun=All&dryRun=x", manifest("a"), "", "UpdateOptions", "dryRun"},
		{"PATCH", pods + "/a?dryRun=x&fieldValidation=x", "{}", merge, "PatchOptions", "dryRun fieldValidation"},
		{"PATCH", pods + "/a?force=true", "{}", merge, "PatchOptions", "force"},
		{"DELETE", pods + "/a?dryRun=x", "", "", "DeleteOptions", "dryRun"},
		{"DELETE", pods + "/a?propagationPolicy=x", "", "", "DeleteOptions", "propagationPolicy"},
		{"DELETE", pods + "/a", `{"orphanDependents":true,"propagationPolicy":"Orphan"}`, "", "DeleteOptions", "propagationPolicy"},
		{"GET", pods + "?resourceVersionMatch=x", "", "", "ListOptions", "resourceVersionMatch resourceVersionMatch"},
		{"GET", pods + "?resourceVersionMatch=Exact&resourceVersion=1&continue=x", "", "", "ListOptions", "resourceVersionMatch"},
		{"GET", pods + "?watch=true&sendInitialEvents=true", "", "", "ListOptions", "resourceVersionMatch"},
	} {
		header := []string{}
		if c.contentType != "" {
			header = append(header, "Content-Type", c.contentType)
		}
		name := c.method + " " + c.path
		res := e.do(c.method, c.path, c.body, header...)
		assert.Equal(t, http.StatusUnprocessableEntity, res.code, name+res.body)
		st := res.status(t)
		assert.Equal(t, metav1.StatusReasonInvalid, st.Reason, name)
		if !assert.NotNil(t, st.Details, name) {
			continue
		}
		assert.Equal(t, c.kind, st.Details.Kind, name)
		var fields []string
		for _, cause := range st.Details.Causes {
			fields = append(fields, cause.Field)
		}
		assert.Equal(t, c.fields, strings.Join(fields, " "), name)
	}
	for path, code := range map[string]int{"?limit=x": 400, "?timeoutSeconds=x": 400, "?watch=true&timeoutSeconds=x": 400} {
		assert.Equal(t, code, e.get(pods+path).code, path)
	}
	list, err := e.client.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, names(list))
	assert.Equal(t, before.ResourceVersion, list.Items[0].ResourceVersion)
}

// SV-12: what a query names of a pod to delete is a precondition.
func TestOptions_PreconditionsInTheQuery(t *testing.T) {
	e := newEnv(t, nil)
	created := e.create("a")
	for _, query := range []string{"?uid=other", "?resourceVersion=1"} {
		assert.Equal(t, metav1.StatusReasonConflict, e.do("DELETE", pods+"/a"+query, "").status(t).Reason, query)
	}
	assert.Equal(t, http.StatusOK, e.do("DELETE", pods+"/a"+values("uid", string(created.UID), "resourceVersion", created.ResourceVersion), "").code)
}

// SV-12: the same is wrong with a new pod as on a cluster.
func TestStore_RejectedNewPods(t *testing.T) {
	e := newEnv(t, nil)
	for edit, want := range map[string]string{
		`"ownerReferences":[{}]`: "metadata.ownerReferences[0].uid: Required value", `"generateName":"b."`: "metadata.generateName: Invalid value",
	} {
		res := e.do("POST", pods, strings.Replace(manifest("a"), `"name":"a"`, `"name":"a",`+edit, 1))
		assert.Equal(t, http.StatusUnprocessableEntity, res.code, res.body)
		assert.Contains(t, res.status(t).Message, want)
	}
	res := e.do("POST", pods, strings.Replace(manifest("a"), `"spec":{`, `"spec":{"ephemeralContainers":[{"name":"d","image":"x"}],`, 1))
	assert.Equal(t, http.StatusUnprocessableEntity, res.code, res.body)
	assert.Contains(t, res.status(t).Message, "spec.ephemeralContainers: Forbidden: cannot be set on create")
}

func TestStore_GeneratedNames(t *testing.T) {
	e := newEnv(t, nil)
	for _, prefix := range []string{"a-", strings.Repeat("a", 240)} {
		pod := newPod("")
		pod.GenerateName = prefix
		created, err := e.client.CoreV1().Pods("shop").Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		assert.Regexp(t, "^"+prefix[:min(len(prefix), 58)]+"[a-z0-9]{5}$", created.Name)
		assert.Equal(t, prefix, created.GenerateName)
	}
}

// SV-12: a key that is there twice is found in YAML, too.
func TestStore_KeysTwiceInYAML(t *testing.T) {
	e := newEnv(t, nil)
	const twice = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  hostname: a\n  hostname: b\n  containers: [{name: main, image: x}]\n"
	res := e.do("POST", pods+"?fieldValidation=Strict", twice, "Content-Type", "application/yaml")
	assert.Equal(t, http.StatusBadRequest, res.code, res.body)
	assert.Contains(t, res.status(t).Message, `key "hostname" already set`)
	res = e.do("POST", pods, twice, "Content-Type", "application/yaml")
	assert.Equal(t, http.StatusCreated, res.code, res.body)
	assert.Contains(t, res.header.Get("Warning"), "already set")
	// Clients take headers of a bounded size only.
	res = e.do("POST", pods, strings.Replace(twice, "{name: a}", "{name: b}", 1)+strings.Repeat("more: 1\n", 5000), "Content-Type", "application/yaml")
	assert.Equal(t, http.StatusCreated, res.code, res.body)
	warnings := strings.Join(res.header.Values("Warning"), "")
	assert.Less(t, len(warnings), 5000)
	assert.Contains(t, warnings, "further warnings are left out")
}

// A patch must not keep other changes waiting for long.
func TestStore_StrategicPatchIsBounded(t *testing.T) {
	e := newEnv(t, nil)
	e.create("a")
	body := `{"spec":{"containers":[` + strings.Repeat(`{"name":"x"},`, 5000) + `{"name":"y"}]}}`
	res := e.do("PATCH", pods+"/a", body, "Content-Type", "application/strategic-merge-patch+json")
	assert.Equal(t, http.StatusRequestEntityTooLarge, res.code, res.body)
	assert.Contains(t, res.status(t).Message, "5000 elements")
	large := strings.Replace(manifest("b"), `"app:1"`, `"app:1","args":["a"`+strings.Repeat(`,"a"`, 50_000)+`]`, 1)
	require.Equal(t, http.StatusCreated, e.do("POST", pods, large).code)
	for n, code := range map[int]int{10: http.StatusOK, 500: http.StatusRequestEntityTooLarge} {
		body := `{"spec":{"tolerations":[{"key":"k","operator":"Exists"}` + strings.Repeat(`,{"key":"k","operator":"Exists"}`, n-1) + `]}}`
		res := e.do("PATCH", pods+"/b", body, "Content-Type", "application/strategic-merge-patch+json")
		assert.Equal(t, code, res.code, res.body[:min(len(res.body), 500)])
	}
}

// A pod cannot grow by patches until it fills the memory, and its file cannot be read any more.
func TestStore_PodsAreBounded(t *testing.T) {
	e := newEnv(t, nil)
	before := e.create("a")
	add := func(name string) response {
		body := `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"X","name":"` + strings.Repeat("x", 800<<10) + `","uid":"` + name + `"}]}}`
		return e.do("PATCH", pods+"/a", body, "Content-Type", "application/strategic-merge-patch+json")
	}
	assert.Equal(t, http.StatusOK, add("1").code)
	res := add("2")
	assert.Equal(t, http.StatusRequestEntityTooLarge, res.code, res.body)
	assert.Equal(t, metav1.StatusReasonRequestEntityTooLarge, res.status(t).Reason)
	pod, err := e.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Len(t, pod.OwnerReferences, 1)
	assert.Equal(t, before.UID, pod.UID)
	large := strings.Replace(manifest("b"), `"app:1"`, `"app:1","args":["`+strings.Repeat("x", 1600<<10)+`"]`, 1)
	assert.Equal(t, http.StatusRequestEntityTooLarge, e.do("POST", pods, large).code)
	assert.Equal(t, http.StatusNotFound, e.get(pods+"/b").code)
}

// Who has no right can have a review, and nothing that takes much memory.
func TestReviews_AreBounded(t *testing.T) {
	e := newEnv(t, nil)
	for _, size := range []int{1 << 10, 100 << 10} {
		body := `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods","name":"` + strings.Repeat("x", size) + `"}}}`
		res := e.do("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
		assert.Equal(t, size > 64<<10, res.code == http.StatusRequestEntityTooLarge, "%d: %s", size, res.body)
	}
}

// What a selector can name is what it can on a cluster.
func TestSelector_AddressesAndUnschedulable(t *testing.T) {
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) {
		cfg.Node = func(context.Context) (*corev1.Node, error) {
			return &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KernelVersion: "6.1", Architecture: "arm64"}}}, nil
		}
	})
	pod := staticPod("a", nil)
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	e.setPods(pod)
	for path, n := range map[string]int{
		"pods?fieldSelector=status.podIP%3D10.0.0.1": 1, "pods?fieldSelector=status.podIP%3Dfd00::1": 0, "pods?fieldSelector=status.podIPs%3D10.0.0.1": 0,
		"nodes?fieldSelector=spec.unschedulable%3Dtrue": 1, "nodes?fieldSelector=spec.unschedulable%3Dfalse": 0,
	} {
		res := e.get("/api/v1/" + path)
		assert.Equal(t, http.StatusOK, res.code, path+res.body)
		assert.Equal(t, n, strings.Count(res.body, `"uid"`), path+res.body)
	}
	assert.Contains(t, e.get("/api/v1/nodes", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").body, `"6.1 (arm64)"`)
}

// People who look by hand get what they can read.
func TestRead_IndentedForPeople(t *testing.T) {
	e := newEnv(t, nil)
	for agent, pretty := range map[string]bool{"curl/8.5.0": true, "Wget/1.21": true, "Mozilla/5.0 (X11)": true, "kubectl/v1.37.0": false, "": false} {
		assert.Equal(t, pretty, strings.Contains(e.get(pods, "User-Agent", agent).body, "\n  "), agent)
		assert.NotContains(t, e.get(pods+"?pretty=false", "User-Agent", agent).body, "\n  ", agent)
		assert.Contains(t, e.get(pods+"?pretty=true", "User-Agent", agent).body, "\n  ", agent)
	}
}
