package kubeapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// SV-12: kubectl patch --subresource resize.
func TestStore_Resize(t *testing.T) {
	e := newEnv(t, nil)
	sized := newPod("a")
	sized.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("50m"), "memory": resource.MustParse("10Mi"), "ephemeral-storage": resource.MustParse("1Mi")},
		Limits:   corev1.ResourceList{"memory": resource.MustParse("20Mi")},
	}
	client := e.client.CoreV1().Pods("shop")
	_, err := client.Create(t.Context(), sized, metav1.CreateOptions{})
	require.NoError(t, err)
	e.create("small")
	resize := func(name, container string) (*corev1.Pod, error) {
		return client.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"main",`+container+`}]}}`), metav1.PatchOptions{}, "resize")
	}
	pod, err := resize("a", `"resources":{"requests":{"cpu":"100m","memory":"12Mi"},"limits":{"memory":"40Mi","cpu":"1"}}`)
	require.NoError(t, err)
	want := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("12Mi"), "ephemeral-storage": resource.MustParse("1Mi")},
		Limits:   corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("40Mi")},
	}
	assert.True(t, equality.Semantic.DeepEqual(want, pod.Spec.Containers[0].Resources), "%v", pod.Spec.Containers[0].Resources)
	assert.Equal(t, int64(2), pod.Generation)
	for _, c := range []struct{ pod, container, message string }{
		{"a", `"image":"other"`, "only CPU and memory"},
		{"a", `"resources":{"requests":{"ephemeral-storage":"2Mi"}}`, "only CPU and memory"},
		{"a", `"resources":{"requests":{"example.com/device":"1"},"limits":{"example.com/device":"1"}}`, "only CPU and memory"},
		{"a", `"resources":{"limits":{"memory":null}}`, "neither a request nor a limit can be removed"},
		{"a", `"resizePolicy":[{"resourceName":"cpu","restartPolicy":"RestartContainer"}]`, "only CPU and memory"},
		{"a", `"resources":{"requests":{"memory":"50Mi"}}`, "requests[memory]"},
		{"a", `"resources":{"requests":{"cpu":"1","memory":"40Mi"}}`, "Pod QOS Class may not change"},
		{"small", `"resources":{"requests":{"cpu":"100m"}}`, "Pod QOS Class may not change"},
	} {
		_, err := resize(c.pod, c.container)
		assert.True(t, apierrors.IsInvalid(err), "%s: %v", c.container, err)
		assert.ErrorContains(t, err, c.message, c.container)
	}
	_, err = client.Patch(t.Context(), "a", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"200m"}}}]}}`), metav1.PatchOptions{})
	assert.True(t, apierrors.IsInvalid(err), "only by its own path: %v", err)
	after, err := client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, pod.Spec, after.Spec)
}

// Resources of a pod can be resized like those of its containers.
func TestStore_ResizeOfPodResources(t *testing.T) {
	e := newEnv(t, nil)
	client := e.client.CoreV1().Pods("shop")
	sized := newPod("a")
	sized.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("50m")}, Limits: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}
	_, err := client.Create(t.Context(), sized, metav1.CreateOptions{})
	require.NoError(t, err)
	other := newPod("b")
	other.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("50m")}
	_, err = client.Create(t.Context(), other, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, c := range []struct {
		patch   string
		isValid bool
	}{
		{`{"resources":{"requests":{"cpu":"70m"}}}`, true},
		{`{"resources":null}`, false},
		{`{"resources":{"limits":{"memory":null}}}`, false},
		{`{"resources":{"limits":{"hugepages-2Mi":"4Mi"}}}`, false},
		{`{"restartPolicy":"Never"}`, false},
		{`{"containers":[{"name":"more","image":"more"}]}`, false},
		{`{"resources":{"limits":{"memory":"2Gi","cpu":"3"}}}`, true},
	} {
		_, err := client.Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{"spec":`+c.patch+`}`), metav1.PatchOptions{}, "resize")
		assert.Equal(t, c.isValid, err == nil, "%s: %v", c.patch, err)
	}
	_, err = client.Patch(t.Context(), "b", types.StrategicMergePatchType, []byte(`{"spec":{"resources":{"requests":{"cpu":"70m"}}}}`), metav1.PatchOptions{}, "resize")
	require.NoError(t, err, "it gets resources besides those of its containers")
}

// SV-12: a deadline can only come earlier.
func TestStore_ActiveDeadline(t *testing.T) {
	e := newEnv(t, nil)
	e.create("a")
	for _, c := range []struct {
		deadline string
		code     int
	}{{"0", 422}, {"60", 200}, {"61", 422}, {"null", 422}, {"60", 200}, {"5", 200}, {"6", 422}} {
		res := e.do("PATCH", pods+"/a", `{"spec":{"activeDeadlineSeconds":`+c.deadline+`}}`, "Content-Type", "application/merge-patch+json")
		assert.Equal(t, c.code, res.code, c.deadline+res.body)
		if c.code == http.StatusUnprocessableEntity {
			assert.Contains(t, res.status(t).Message, "spec.activeDeadlineSeconds")
		}
	}
}

// SV-12: a client that does not understand the answer must not believe that nothing was done.
func TestStore_ChangesNothingForAnUnknownForm(t *testing.T) {
	e := newEnv(t, nil)
	before := e.create("a")
	e.setPods(staticPod("static", nil))
	for _, r := range []struct{ method, path, body, contentType string }{
		{"POST", pods, manifest("b"), "application/json"},
		{"PUT", pods + "/a", manifest("a"), "application/json"},
		{"PATCH", pods + "/a", `{"metadata":{"labels":{"x":"y"}}}`, "application/merge-patch+json"},
		{"DELETE", pods + "/a", "", "application/json"},
		{"DELETE", pods + "/static", "", "application/json"},
	} {
		res := e.do(r.method, r.path, r.body, "Content-Type", r.contentType, "Accept", "application/vnd.kubernetes.protobuf")
		assert.Equal(t, http.StatusNotAcceptable, res.code, r.method)
		res = e.do(r.method, r.path+"?includeObject=x", r.body, "Content-Type", r.contentType, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		assert.Equal(t, http.StatusBadRequest, res.code, r.method)
	}
	assert.Empty(t, e.restarts)
	list, err := e.client.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "static"}, names(list))
	assert.Equal(t, before.ResourceVersion, list.Items[0].ResourceVersion)
}

// SV-12: kubectl diff shows what differs, so a preview has the version of the pod that would change.
func TestStore_DryRunHasTheVersion(t *testing.T) {
	e := newEnv(t, nil)
	created, client, all := e.create("a"), e.client.CoreV1().Pods("shop"), []string{metav1.DryRunAll}
	patched, err := client.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{DryRun: all})
	require.NoError(t, err)
	assert.Equal(t, created.ResourceVersion, patched.ResourceVersion)
	deleted := e.do("DELETE", pods+"/a?dryRun=All", "")
	assert.Contains(t, deleted.body, `"resourceVersion":"`+created.ResourceVersion+`"`)
	assert.Contains(t, deleted.body, "deletionTimestamp")
	created, err = client.Create(t.Context(), newPod("b"), metav1.CreateOptions{DryRun: all})
	require.NoError(t, err)
	assert.Empty(t, created.ResourceVersion)
}

// SV-8: a watch above the number of streams is a Status too.
func TestWatch_AboveTheNumberOfStreams(t *testing.T) {
	e := newEnv(t, func(_ *kubeapi.Config, srv *server.Config) { srv.MaxStreams = 1 })
	e.setPods(staticPod("a", nil))
	events := e.rawWatch(values("watch", "true"))
	assert.Equal(t, "ADDED", events().Type)
	for path, message := range map[string]string{pods + "?watch=true": "too many streams", pods + "/a/log": `pod "a": too many streams`} {
		res := e.get(path)
		assert.Equal(t, http.StatusTooManyRequests, res.code, path)
		assert.Equal(t, "5", res.header.Get("Retry-After"), path)
		st := res.status(t)
		assert.Equal(t, metav1.StatusReasonTooManyRequests, st.Reason, path)
		assert.Equal(t, message, st.Message, path)
	}
}
