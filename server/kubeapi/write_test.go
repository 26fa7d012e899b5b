package kubeapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

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
