package kubeapi_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// newPod is what a client creates.
func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "app:1"}}},
	}
}

func (e *env) create(name string) *corev1.Pod {
	e.t.Helper()
	pod, err := e.client.CoreV1().Pods("shop").Create(e.t.Context(), newPod(name), metav1.CreateOptions{})
	require.NoError(e.t, err)
	return pod
}

// delivered waits until the agent has the pod as expected.
func (e *env) delivered(name string, is func(*corev1.Pod) bool) {
	e.t.Helper()
	eventually(e.t, func() bool { return is(e.sourcePod(name)) }, "the agent gets the pod")
}

// SV-11
func TestStore_CreatedPodSurvives(t *testing.T) {
	e := newEnv(t, nil)
	created := e.create("a")
	assert.NotEmpty(t, created.UID)
	assert.False(t, created.CreationTimestamp.IsZero())
	assert.Equal(t, nodeName, created.Spec.NodeName)
	assert.Equal(t, corev1.RestartPolicyAlways, created.Spec.RestartPolicy, "defaults are set")
	assert.Equal(t, corev1.PodPending, created.Status.Phase)
	assert.Equal(t, corev1.PodQOSBestEffort, created.Status.QOSClass)
	e.delivered("a", func(pod *corev1.Pod) bool { return pod != nil && pod.UID == created.UID })
	assert.False(t, e.store.Static())

	running := created.DeepCopy()
	running.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}
	e.setPods(running)
	visible, err := e.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "10.0.0.1", visible.Status.PodIP)
	assert.Equal(t, created.UID, visible.UID)
	assert.NotEqual(t, created.ResourceVersion, visible.ResourceVersion)

	_, err = e.client.CoreV1().Pods("shop").Create(t.Context(), newPod("a"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	e.setPods(running, staticPod("static", nil))
	_, err = e.client.CoreV1().Pods("shop").Create(t.Context(), newPod("static"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsAlreadyExists(err), "a static pod has the name: %v", err)

	info, err := os.Stat(filepath.Join(e.dir, "shop_a.json"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	set := load(t, e.dir)
	require.Len(t, set.Pods, 1)
	assert.Equal(t, created.UID, set.Pods[0].Pod.UID)
	assert.False(t, set.Incomplete)
}

// load returns what a Store delivers first.
func load(t *testing.T, dir string) (first podsource.Set) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, kubeapi.NewStore(dir).Watch(ctx, func(set podsource.Set) {
		first = set
		cancel()
	}))
	return first
}

// SV-11
func TestStore_UnreadableFileEndsNoPod(t *testing.T) {
	e := newEnv(t, nil)
	e.create("a")
	for name, text := range map[string]string{"shop_b.json": "{", "shop_c.json": `{"metadata":{"namespace":"shop","name":"other","uid":"1"}}`, "shop_d.json": `{"metadata":{"namespace":"shop","name":"d"}}`, "README": "no pod"} {
		require.NoError(t, os.WriteFile(filepath.Join(e.dir, name), []byte(text), 0o600))
	}
	for _, name := range []string{".shop_a.json.123", "shop_a.json.bak", "shop_x.json.damaged.bak"} {
		require.NoError(t, os.WriteFile(filepath.Join(e.dir, name), nil, 0o600))
	}
	set := load(t, e.dir)
	assert.Len(t, set.Pods, 1)
	assert.True(t, set.Incomplete, "what runs is not ended for want of a file")
	require.Len(t, set.Errors, 3)
	assert.FileExists(t, filepath.Join(e.dir, "shop_b.json.damaged"))
	assert.NoFileExists(t, filepath.Join(e.dir, ".shop_a.json.123"), "an interrupted write")
	for _, name := range []string{"README", "shop_a.json.bak", "shop_x.json.damaged.bak"} {
		assert.FileExists(t, filepath.Join(e.dir, name), "not of the store")
	}

	set = load(t, e.dir)
	assert.Len(t, set.Pods, 1)
	assert.True(t, set.Incomplete, "nor at any later start")
	require.Len(t, set.Errors, 3)
	assert.Equal(t, filepath.Join(e.dir, "shop_b.json.damaged"), set.Errors[0].Location)
	require.ErrorContains(t, set.Errors[0].Err, "until this file is removed")
	require.NoError(t, os.Remove(filepath.Join(e.dir, "shop_b.json.damaged")))
	assert.Len(t, load(t, e.dir).Errors, 2)
}

func TestStore_BeforeTheAgentRuns(t *testing.T) {
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) { cfg.Store = kubeapi.NewStore(t.TempDir()) })
	_, err := e.client.CoreV1().Pods("shop").Create(t.Context(), newPod("a"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
}

// SV-12
func TestStore_RejectsInvalidPods(t *testing.T) {
	e := newEnv(t, nil)
	for name, c := range map[string]struct {
		edit    func(*corev1.Pod)
		code    int32
		message string
	}{
		"no container":     {func(p *corev1.Pod) { p.Spec.Containers = nil }, 422, "spec.containers"},
		"two mistakes":     {func(p *corev1.Pod) { p.Name = "A_B"; p.Spec.Containers[0].Image = "" }, 422, "metadata.name"},
		"unsupported":      {func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }, 422, "schedulingGates"},
		"another node":     {func(p *corev1.Pod) { p.Spec.NodeName = "other" }, 422, "this node is edge-1"},
		"finalizer":        {func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} }, 422, "metadata.finalizers"},
		"resource version": {func(p *corev1.Pod) { p.ResourceVersion = "1" }, 400, "resourceVersion should not be set"},
		"namespace":        {func(p *corev1.Pod) { p.Namespace = "other" }, 400, "namespace"},
	} {
		pod := newPod("a")
		c.edit(pod)
		_, err := e.client.CoreV1().RESTClient().Post().Namespace("shop").Resource("pods").Body(pod).Do(t.Context()).Get()
		require.Error(t, err, name)
		st := err.(apierrors.APIStatus).Status()
		assert.Equal(t, c.code, st.Code, name)
		assert.Contains(t, st.Message, c.message, name)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, e.do("POST", "/api/v1/pods", manifest("a")).code, "a pod has a namespace")
	for body, message := range map[string]string{`{`: "decode", `{"kind":"Service","apiVersion":"v1"}`: "a v1 Pod is expected", `{"kind":"Pod","apiVersion":"v2"}`: "expected", `{"spec":[]}`: "decode the object"} {
		res := e.do("POST", pods, body)
		assert.Equal(t, http.StatusBadRequest, res.code, body)
		assert.Contains(t, res.status(t).Message, message)
	}
	assert.Equal(t, http.StatusUnsupportedMediaType, e.do("POST", pods, "x", "Content-Type", "application/cbor").code)
	assert.Equal(t, http.StatusUnsupportedMediaType, e.do("POST", pods, "x", "Content-Type", "//").code)
	assert.Equal(t, http.StatusRequestEntityTooLarge, e.do("POST", pods, string(make([]byte, 4<<20))).code)
	assert.Equal(t, http.StatusCreated, e.do("POST", pods, "kind: Pod\nmetadata: {name: y-1}\nspec: {containers: [{name: c, image: i}]}", "Content-Type", "application/yaml").code)
}

func TestStore_StrictFields(t *testing.T) {
	e := newEnv(t, nil)
	body := `{"metadata":{"name":"a","nme":"x"},"spec":{"containers":[{"name":"c","image":"i","image":"j"}]}}`
	res := e.do("POST", pods+"?fieldValidation=Strict", body)
	assert.Equal(t, http.StatusBadRequest, res.code)
	assert.Contains(t, res.status(t).Message, `unknown field "metadata.nme"`)
	assert.Contains(t, res.body, "duplicate field")
	assert.Equal(t, http.StatusUnprocessableEntity, e.do("POST", pods+"?fieldValidation=x", body).code)
	res = e.do("POST", pods+"?dryRun=All", body)
	assert.Equal(t, http.StatusCreated, res.code)
	assert.Len(t, res.header.Values("Warning"), 2)
	assert.Contains(t, res.header.Get("Warning"), `299 - "`)
	assert.Empty(t, e.do("POST", pods+"?dryRun=All&fieldValidation=Ignore", body).header.Get("Warning"))
}

// SV-12
func TestStore_DryRun(t *testing.T) {
	e := newEnv(t, nil)
	client, all := e.client.CoreV1().Pods("shop"), []string{metav1.DryRunAll}
	_, err := client.Create(t.Context(), newPod("a"), metav1.CreateOptions{DryRun: all})
	require.NoError(t, err)
	_, err = client.Get(t.Context(), "a", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err))
	e.create("a")
	patched, err := client.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{DryRun: all})
	require.NoError(t, err)
	assert.Equal(t, "y", patched.Labels["x"])
	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{DryRun: all}))
	pod, err := client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotContains(t, pod.Labels, "x")
	assert.Nil(t, pod.DeletionTimestamp)
	assert.Equal(t, http.StatusUnprocessableEntity, e.do("POST", pods+"?dryRun=Some", manifest("b")).code)
	e.setPods(staticPod("static", nil))
	require.NoError(t, client.Delete(t.Context(), "static", metav1.DeleteOptions{DryRun: all}))
	assert.Empty(t, e.restarts)
}

// SV-12
func TestStore_Changes(t *testing.T) {
	e := newEnv(t, nil)
	created := e.create("a")
	client := e.client.CoreV1().Pods("shop")
	// kubectl label, annotate and patch, by each kind of patch.
	for _, c := range []struct {
		typ   types.PatchType
		patch string
	}{
		{types.StrategicMergePatchType, `{"metadata":{"labels":{"one":"1"}},"spec":{"containers":[{"name":"main","image":"app:2"}]}}`},
		{types.MergePatchType, `{"metadata":{"labels":{"two":"2","app":null}},"spec":{"activeDeadlineSeconds":60}}`},
		{types.JSONPatchType, `[{"op":"test","path":"/metadata/labels/two","value":"2"},{"op":"add","path":"/spec/tolerations","value":[{"key":"x","operator":"Exists"}]}]`},
	} {
		_, err := client.Patch(t.Context(), "a", c.typ, []byte(c.patch), metav1.PatchOptions{})
		require.NoError(t, err, c.patch)
	}
	pod, err := client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"one": "1", "two": "2"}, pod.Labels)
	assert.Equal(t, "app:2", pod.Spec.Containers[0].Image)
	assert.Equal(t, int64(60), *pod.Spec.ActiveDeadlineSeconds)
	assert.Len(t, pod.Spec.Tolerations, 1)
	assert.Equal(t, created.UID, pod.UID)
	assert.Equal(t, int64(4), pod.Generation, "the spec has changed three times")
	e.delivered("a", func(pod *corev1.Pod) bool {
		return pod.Spec.Containers[0].Image == "app:2" && len(pod.Spec.Tolerations) == 1
	})
	// kubectl replace, of what the manifest has.
	replaced := newPod("a")
	replaced.Spec.Containers[0].Image = "app:3"
	replaced.Spec.ActiveDeadlineSeconds, replaced.Spec.Tolerations = pod.Spec.ActiveDeadlineSeconds, pod.Spec.Tolerations
	pod, err = client.Update(t.Context(), replaced, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "app:3", pod.Spec.Containers[0].Image)
	// An update that changes nothing has the same version.
	same, err := client.Update(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, pod.ResourceVersion, same.ResourceVersion)
	assert.Equal(t, pod.Generation, same.Generation)
}

// SV-12
func TestStore_RejectedChanges(t *testing.T) {
	e := newEnv(t, nil)
	created := e.create("a")
	e.setPods(staticPod("static", nil))
	patch := func(name, typ, body string) response {
		return e.do("PATCH", pods+"/"+name, body, "Content-Type", typ)
	}
	const merge, strategic, jsonPatch = "application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json"
	for _, c := range []struct {
		response response
		reason   metav1.StatusReason
		message  string
	}{
		{patch("none", merge, "{}"), metav1.StatusReasonNotFound, "not found"},
		{patch("static", merge, "{}"), metav1.StatusReasonForbidden, `it comes from the source "file" of this node`},
		{patch("a", strategic, `{"spec":{"hostNetwork":true}}`), metav1.StatusReasonInvalid, "may not change fields other than"},
		{patch("a", strategic, `{"spec":{"containers":[{"name":"more","image":"x"}]}}`), metav1.StatusReasonInvalid, "spec.containers: Forbidden: containers cannot be added or removed"},
		{patch("a", strategic, `{"spec":{"containers":[{"name":"main","image":""}]}}`), metav1.StatusReasonInvalid, "image"},
		{patch("a", strategic, `{"spec":{"containers":[{"name":["main"],"image":"x"}]}}`), metav1.StatusReasonBadRequest, "another type"},
		{patch("a", strategic, `{"spec":{"containers":[{"name":{"a":"main"},"image":"x"}]}}`), metav1.StatusReasonBadRequest, "another type"},
		{patch("a", merge, `{"spec":{"ephemeralContainers":[{"name":"d","image":"x"}]}}`), metav1.StatusReasonInvalid, "may not change fields other than"},
		{patch("a", merge, `{"metadata":{"uid":"other"}}`), metav1.StatusReasonInvalid, "metadata.uid: Invalid value"},
		{patch("a", merge, `{"metadata":{"deletionTimestamp":"2020-01-01T00:00:00Z"}}`), metav1.StatusReasonInvalid, "metadata.deletionTimestamp: Invalid value"},
		{patch("a", merge, `{"metadata":{"deletionGracePeriodSeconds":1}}`), metav1.StatusReasonInvalid, "metadata.deletionGracePeriodSeconds: Invalid value"},
		{patch("a", merge, `{"metadata":{"ownerReferences":[{}]}}`), metav1.StatusReasonInvalid, "metadata.ownerReferences[0].uid: Required value"},
		{patch("a", merge, `{"metadata":{"labels":{"a":1}}}`), metav1.StatusReasonInvalid, "patch: Invalid value"},
		{patch("a", strategic, `{"metadata":{"labels":{"a":1}}}`), metav1.StatusReasonInvalid, "patch: Invalid value"},
		{patch("a", jsonPatch, `[{"op":"add","path":"/kind","value":1}]`), metav1.StatusReasonInvalid, "patch: Invalid value"},
		{patch("a", merge, `{"spec":{"tolerations":[{}],"hostname":"b"}}`), metav1.StatusReasonInvalid, "[spec.tolerations[0].operator: Invalid value: \"\": must be Exists when there is no key, spec: Forbidden: pod updates"},
		{patch("a", merge, `{"metadata":{"resourceVersion":"0"}}`), "", "any version"},
		{patch("a", merge, `{"metadata":{"resourceVersion":"1"}}`), metav1.StatusReasonConflict, "the object has been modified"},
		{patch("a", merge, `{"metadata":{"name":"b"}}`), metav1.StatusReasonBadRequest, "cannot be changed"},
		{patch("a", merge, `[]`), metav1.StatusReasonBadRequest, "must be an object"},
		{patch("a", merge, `{`), metav1.StatusReasonBadRequest, "apply the patch"},
		{patch("a", jsonPatch, `[{"op":"test","path":"/metadata/name","value":"b"}]`), metav1.StatusReasonInvalid, "testing value /metadata/name failed"},
		{patch("a", jsonPatch, `[{"op":"remove","path":"/nothing"}]`), metav1.StatusReasonInvalid, `there is no "nothing"`},
		{patch("a", jsonPatch, "["+strings.Repeat(`{"op":"test","path":"/kind","value":"Pod"},`, 10_000)+`{}]`), metav1.StatusReasonRequestEntityTooLarge, "10000 operations"},
		{patch("a", "application/apply-patch+yaml", `{}`), metav1.StatusReasonUnsupportedMediaType, "server-side apply is not supported"},
		{patch("a", "application/x", `{}`), metav1.StatusReasonUnsupportedMediaType, `"application/x"`},
		{patch("a", "/", `{}`), metav1.StatusReasonUnsupportedMediaType, ""},
		{e.do("PUT", pods+"/a", manifest("b")), metav1.StatusReasonBadRequest, "does not match the name on the URL"},
		{e.do("PUT", pods+"/none", manifest("none")), metav1.StatusReasonNotFound, ""},
	} {
		if c.reason == "" {
			assert.Equal(t, http.StatusOK, c.response.code, c.response.body)
			continue
		}
		st := c.response.status(t)
		assert.Equal(t, c.reason, st.Reason, st.Message)
		assert.Contains(t, st.Message, c.message)
	}
	pod, err := e.client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, created.Spec, pod.Spec, "ephemeral containers have a path of their own")
}

// kubectl debug.
func TestStore_EphemeralContainers(t *testing.T) {
	e := newEnv(t, nil)
	e.create("a")
	client := e.client.CoreV1().Pods("shop")
	pod, err := client.Patch(t.Context(), "a", types.StrategicMergePatchType,
		[]byte(`{"metadata":{"labels":{"not":"here"}},"spec":{"ephemeralContainers":[{"name":"debug","image":"tools"}]}}`), metav1.PatchOptions{}, "ephemeralcontainers")
	require.NoError(t, err)
	require.Len(t, pod.Spec.EphemeralContainers, 1)
	assert.NotContains(t, pod.Labels, "not")
	e.delivered("a", func(pod *corev1.Pod) bool { return len(pod.Spec.EphemeralContainers) == 1 })
	pod.Spec.EphemeralContainers = nil
	_, err = client.UpdateEphemeralContainers(t.Context(), "a", pod, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsInvalid(err), "they can only be added: %v", err)

	assert.Contains(t, e.get(pods+"/a/resize").body, `"kind":"Pod"`)
}

// SV-10
func TestStore_GracefulDeletion(t *testing.T) {
	e := newEnv(t, nil)
	created := e.create("a")
	client := e.client.CoreV1().Pods("shop")
	w, err := client.Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	assert.Equal(t, "ADDED a", next(t, w))
	seconds := func(n int64) metav1.DeleteOptions { return metav1.DeleteOptions{GracePeriodSeconds: &n} }
	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	assert.Equal(t, "MODIFIED a", next(t, w))
	period := func() int64 {
		pod, err := client.Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err)
		require.NotNil(t, pod.DeletionTimestamp)
		return *pod.DeletionGracePeriodSeconds
	}
	assert.Equal(t, int64(30), period(), "that of its spec")
	require.NoError(t, client.Delete(t.Context(), "a", seconds(3)))
	assert.Equal(t, int64(3), period(), "a second request can shorten it")
	require.NoError(t, client.Delete(t.Context(), "a", seconds(20)))
	assert.Equal(t, int64(3), period(), "but not extend it")
	e.delivered("a", func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds == 3
	})
	assert.NotEmpty(t, load(t, e.dir).Pods, "it is not gone before it has ended")
	_, err = client.Create(t.Context(), newPod("a"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsAlreadyExists(err), "%v", err)

	other := created.DeepCopy()
	other.UID = "other"
	require.NoError(t, e.store.DeleteStatus(t.Context(), other))
	assert.Equal(t, int64(3), period(), "the end of another pod")
	require.NoError(t, e.store.SetStatus(t.Context(), created, corev1.PodStatus{}))
	require.NoError(t, e.store.DeleteStatus(t.Context(), created))
	assert.Equal(t, "MODIFIED a", next(t, w))
	assert.Equal(t, "DELETED a", next(t, w))
	_, err = client.Get(t.Context(), "a", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err))
	assert.Empty(t, load(t, e.dir).Pods)
	e.create("a")
	require.NoError(t, e.store.DeleteStatus(t.Context(), e.create("b")), "it was not deleted")
	assert.Len(t, load(t, e.dir).Pods, 2)
}

// SV-10: kubectl delete --force
func TestStore_ForcedDeletion(t *testing.T) {
	e := newEnv(t, nil)
	created := e.create("a")
	e.setPods(created)
	client := e.client.CoreV1().Pods("shop")
	var none int64
	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: &none}))
	_, err := client.Get(t.Context(), "a", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "hidden at once, though it still runs: %v", err)
	e.delivered("a", func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds == 0
	})
	second := e.create("a")
	assert.NotEqual(t, created.UID, second.UID)
	e.delivered("a", func(pod *corev1.Pod) bool { return pod.UID == second.UID })
	require.NoError(t, e.store.DeleteStatus(t.Context(), created))
	_, err = client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
}
