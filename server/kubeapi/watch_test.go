package kubeapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// next returns the next event of a watch as "TYPE name".
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return "closed"
		}
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return string(event.Type) + " " + apierrors.FromObject(event.Object).Error()
		}
		return string(event.Type) + " " + pod.Name
	case <-time.After(testTimeout):
		t.Fatal("no event")
		return ""
	}
}

func TestWatch_ChangesAndSelectors(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", map[string]string{"app": "web"}), staticPod("b", nil))
	w, err := e.client.CoreV1().Pods("shop").Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	require.NoError(t, err)
	defer w.Stop()
	assert.Equal(t, "ADDED a", next(t, w))
	failed := staticPod("a", map[string]string{"app": "web"})
	failed.Status = corev1.PodStatus{Phase: corev1.PodFailed}
	e.setPods(failed, staticPod("b", nil))
	assert.Equal(t, "MODIFIED a", next(t, w))
	e.setPods(failed, staticPod("b", map[string]string{"app": "web"}))
	assert.Equal(t, "ADDED b", next(t, w), "it begins to match")
	e.setPods(failed, staticPod("b", nil))
	assert.Equal(t, "DELETED b", next(t, w), "it matches no more")
	changed := staticPod("a", map[string]string{"app": "web"})
	changed.UID = "other"
	e.setPods(changed, staticPod("b", nil))
	assert.Equal(t, "DELETED a", next(t, w), "another UID is another pod")
	assert.Equal(t, "ADDED a", next(t, w))
	e.setPods()
	assert.Equal(t, "DELETED a", next(t, w))
}

func TestWatch_FromVersion(t *testing.T) {
	e := newEnv(t, nil)
	a := staticPod("a", nil)
	e.setPods(a)
	client := e.client.CoreV1().Pods("shop")
	list, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	e.setPods(a, staticPod("b", nil))
	_, err = client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	w, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	assert.Equal(t, "ADDED b", next(t, w), "what happened after the list, and nothing else")
	w.Stop()
	for name, version := range map[string]string{"of an earlier process": "1", "of the future": "9999999999999999999"} {
		w, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		require.NoError(t, err)
		assert.Contains(t, next(t, w), "ERROR too old resource version", name)
		assert.Equal(t, "closed", next(t, w), name)
	}
	_, err = client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "x"})
	assert.True(t, apierrors.IsBadRequest(err), "%v", err)
}

// rawWatch reads the events of a watch as they are sent.
func (e *env) rawWatch(query string, header ...string) (events func() metav1.WatchEvent) {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, e.url+pods+query, http.NoBody)
	require.NoError(e.t, err)
	req.Header.Set("Authorization", "Bearer good")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := e.http.Do(req)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(e.t, http.StatusOK, res.StatusCode)
	lines := bufio.NewReader(res.Body)
	return func() (event metav1.WatchEvent) {
		e.t.Helper()
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return metav1.WatchEvent{Type: "END"}
		}
		require.NoError(e.t, json.Unmarshal(line, &event), string(line))
		return event
	}
}

func TestWatch_InitialEventsEndWithBookmark(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil), staticPod("b", nil))
	events := e.rawWatch(values("watch", "true", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true"))
	assert.Equal(t, "ADDED", events().Type)
	assert.Equal(t, "ADDED", events().Type)
	bookmark := events()
	assert.Equal(t, "BOOKMARK", bookmark.Type)
	var pod corev1.Pod
	require.NoError(t, json.Unmarshal(bookmark.Object.Raw, &pod))
	assert.Equal(t, "true", pod.Annotations[metav1.InitialEventsAnnotationKey])
	assert.Equal(t, "Pod", pod.Kind)
	res := e.get(pods + values("watch", "true", "sendInitialEvents", "true"))
	assert.Equal(t, http.StatusUnprocessableEntity, res.code)
}

// Objects of a version that there is not yet are an error, after which clients list.
func TestWatch_InitialEventsOfTheFuture(t *testing.T) {
	e := newEnv(t, nil)
	events := e.rawWatch(values("watch", "true", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "resourceVersion", "9999999999999999999", "timeoutSeconds", "5"))
	first := events()
	assert.Equal(t, "ERROR", first.Type)
	var st metav1.Status
	require.NoError(t, json.Unmarshal(first.Object.Raw, &st))
	assert.True(t, apierrors.HasStatusCause(&apierrors.StatusError{ErrStatus: st}, metav1.CauseTypeResourceVersionTooLarge), "%v", st)
	assert.Equal(t, "END", events().Type)
}

// A client that asks for no initial events gets changes alone, whether it names a version or not.
func TestWatch_WithoutInitialEvents(t *testing.T) {
	for _, version := range []string{"", "0"} {
		e := newEnv(t, nil)
		e.setPods(staticPod("a", nil))
		events := e.rawWatch(values("watch", "true", "sendInitialEvents", "false", "resourceVersionMatch", "NotOlderThan", "resourceVersion", version))
		e.setPods(staticPod("a", nil), staticPod("b", nil))
		first := events()
		assert.Equal(t, "ADDED", first.Type)
		var pod corev1.Pod
		require.NoError(t, json.Unmarshal(first.Object.Raw, &pod))
		assert.Equal(t, "b", pod.Name)
	}
}

// A list has the version that the client asks for, or is an error.
func TestList_ResourceVersions(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil))
	version := func() string {
		list, err := e.client.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return list.ResourceVersion
	}
	list := func(version, match string) (*corev1.PodList, error) {
		return e.client.CoreV1().Pods("shop").List(t.Context(), metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatch(match)})
	}
	first := version()
	_, err := e.client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}) // may take versions of its own
	require.NoError(t, err)
	same, err := list(first, "Exact")
	require.NoError(t, err)
	assert.Equal(t, first, same.ResourceVersion)
	assert.Len(t, same.Items, 1)
	e.setPods(staticPod("a", nil), staticPod("b", nil))
	eventually(t, func() bool { now, err := list("", ""); return err == nil && len(now.Items) == 2 }, "both pods")
	_, err = list(first, "Exact")
	assert.True(t, apierrors.IsResourceExpired(err), "%v", err)
	for _, match := range []string{"", "NotOlderThan"} {
		newer, err := list(first, match)
		require.NoError(t, err)
		assert.Len(t, newer.Items, 2)
	}
	future := version() + "0"
	for _, match := range []string{"", "NotOlderThan", "Exact"} {
		res := e.get(pods + values("resourceVersion", future, "resourceVersionMatch", match))
		assert.Equal(t, http.StatusGatewayTimeout, res.code)
		st := res.status(t)
		assert.True(t, apierrors.HasStatusCause(&apierrors.StatusError{ErrStatus: st}, metav1.CauseTypeResourceVersionTooLarge), res.body)
	}
	for query, code := range map[string]int{
		values("resourceVersion", "x"):                                    http.StatusBadRequest,
		values("resourceVersionMatch", "Exact"):                           http.StatusUnprocessableEntity,
		values("resourceVersionMatch", "Exact", "resourceVersion", "0"):   http.StatusUnprocessableEntity,
		values("resourceVersionMatch", "Other", "resourceVersion", first): http.StatusUnprocessableEntity,
		values("sendInitialEvents", "true"):                               http.StatusUnprocessableEntity,
	} {
		assert.Equal(t, code, e.get(pods+query).code, query)
	}
}

// kubectl get -w: the columns come once.
func TestWatch_Tables(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil))
	events := e.rawWatch(values("watch", "1"), "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	var first, second metav1.Table
	require.NoError(t, json.Unmarshal(events().Object.Raw, &first))
	assert.NotEmpty(t, first.ColumnDefinitions)
	e.setPods(staticPod("a", nil), staticPod("b", nil))
	require.NoError(t, json.Unmarshal(events().Object.Raw, &second))
	assert.Empty(t, second.ColumnDefinitions)
	assert.Equal(t, "b", second.Rows[0].Cells[0])
}

func TestWatch_EndsAfterItsTime(t *testing.T) {
	e := newEnv(t, nil)
	start := time.Now()
	events := e.rawWatch(values("watch", "true", "timeoutSeconds", "1"))
	assert.Equal(t, "END", events().Type)
	assert.GreaterOrEqual(t, time.Since(start), time.Second)
	assert.Equal(t, http.StatusBadRequest, e.get(pods+values("watch", "true", "timeoutSeconds", "x")).code)
}

func TestWatch_OneObject(t *testing.T) {
	e := newEnv(t, nil)
	e.setPods(staticPod("a", nil), staticPod("b", nil))
	w, err := e.client.CoreV1().Pods("shop").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=b"})
	require.NoError(t, err)
	defer w.Stop()
	assert.Equal(t, "ADDED b", next(t, w))
}

// A runtime that hangs delays what is known of the node, and no pod.
func TestWatch_PodsDoNotWaitForTheNode(t *testing.T) {
	var hangs atomic.Bool
	hanging, end := make(chan struct{}, 100), make(chan struct{})
	e := newEnv(t, func(cfg *kubeapi.Config, _ *server.Config) {
		cfg.Node = func(context.Context) (*corev1.Node, error) {
			if hangs.Load() {
				hanging <- struct{}{}
				<-end
			}
			return &corev1.Node{}, nil
		}
	})
	t.Cleanup(func() { close(end) })
	nodes, err := e.client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer nodes.Stop()
	w, err := e.client.CoreV1().Pods("shop").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	hangs.Store(true)
	<-hanging
	e.setPods(staticPod("a", nil))
	assert.Equal(t, "ADDED a", next(t, w))
	require.NoError(t, e.client.CoreV1().Pods("shop").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	<-e.restarts
	e.restarted <- nil
	assert.Equal(t, "MODIFIED a", next(t, w))
	assert.Equal(t, "DELETED a", next(t, w), "its restart began and ended")
}
