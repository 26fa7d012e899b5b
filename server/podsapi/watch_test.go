package podsapi_test

import (
	"context"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/server/podsapi"
)

// events watches and returns what expects the next events.
func events(t *testing.T, c api.PodsClient) (expect func(want ...string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := c.WatchPods(ctx, &api.WatchPodsRequest{})
	require.NoError(t, err)
	return func(want ...string) {
		t.Helper()
		for _, w := range want {
			e, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, w, text(t, e))
		}
	}
}

// SV-15: a watch has the pods that there are, a mark, and then each change.
func TestServer_WatchesPods(t *testing.T) {
	var n node
	n.set(pod("web", corev1.PodRunning))
	n.set(pod("db", corev1.PodPending))
	c, _ := start(t, &n, podsapi.Config{})
	expect := events(t, c)
	expect("ADDED db Pending", "ADDED web Running", "INITIAL_SYNC_COMPLETE")
	n.set(pod("db", corev1.PodRunning))
	expect("MODIFIED db Running")
	n.set(pod("new", corev1.PodPending))
	expect("ADDED new Pending")
	n.set(pod("web", corev1.PodSucceeded))
	expect("MODIFIED web Succeeded")
	n.remove(pod("web", corev1.PodSucceeded))
	expect("DELETED web -")
	n.set(pod("web", corev1.PodPending))
	expect("ADDED web Pending")
	events(t, c)("ADDED db Running", "ADDED new Pending", "ADDED web Pending", "INITIAL_SYNC_COMPLETE")
}

func TestServer_WatchesNodeWithoutPods(t *testing.T) {
	var n node
	c, _ := start(t, &n, podsapi.Config{})
	expect := events(t, c)
	expect("INITIAL_SYNC_COMPLETE")
	n.set(pod("web", corev1.PodPending))
	expect("ADDED web Pending")
}

// A deletion has what is guaranteed of it.
func TestServer_DeletionHasTheIdentity(t *testing.T) {
	var n node
	web := pod("web", corev1.PodRunning)
	n.set(web)
	c, _ := start(t, &n, podsapi.Config{})
	stream, err := c.WatchPods(t.Context(), &api.WatchPodsRequest{})
	require.NoError(t, err)
	for range 2 {
		_, err = stream.Recv()
		require.NoError(t, err)
	}
	n.remove(web)
	e, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web", UID: "WEB"}}, decode(t, e.GetPod()))
}

// SV-15: after a restart of the agent, a watch begins with the pods of the previous process, reported
// by this one or not, and tells of their ends.
func TestServer_WatchesPodsOfPreviousProcess(t *testing.T) {
	var n node
	n.restore(pod("gone", corev1.PodRunning))
	n.restore(pod("web", corev1.PodUnknown))
	c, _ := start(t, &n, podsapi.Config{})
	expect := events(t, c)
	expect("ADDED gone Running", "ADDED web Unknown", "INITIAL_SYNC_COMPLETE")
	n.set(pod("web", corev1.PodRunning))
	expect("MODIFIED web Running")
	n.remove(pod("never listed", corev1.PodRunning))
	n.remove(pod("gone", corev1.PodRunning))
	expect("DELETED gone -")
}

// A watch begins with pods as a list has them: also changes of an object that leave its status as it
// was. Statuses are those before the first change.
func TestServer_WatchBeginsWithNewestObjects(t *testing.T) {
	var n node
	n.set(pod("web", corev1.PodPending))
	labelled := pod("web", corev1.PodRunning)
	labelled.Labels = map[string]string{"tier": "front"}
	n.restore(labelled) // Running is on its way to the Hub
	c, _ := start(t, &n, podsapi.Config{})
	expect := events(t, c)
	expect("ADDED web Pending tier=front", "INITIAL_SYNC_COMPLETE")
	n.set(labelled)
	expect("MODIFIED web Running tier=front")
}

// SV-15: a client that was slow gets the last state of a pod before its deletion.
func TestServer_SlowClientMissesNoEnd(t *testing.T) {
	var n node
	n.restore(pod("a", corev1.PodRunning))
	n.restore(pod("b", corev1.PodRunning))
	missed := make(chan int, 10)
	c, _ := start(t, &n, podsapi.Config{Hooks: podsapi.Hooks{StatesMissed: func(count int) { missed <- count }}, WatchList: func(ctx context.Context) iter.Seq[podwatch.Event] {
		return func(yield func(podwatch.Event) bool) {
			for _, e := range []podwatch.Event{
				{Type: watch.Deleted, Pod: pod("early", corev1.PodFailed), Missed: 1},
				{Type: watch.Bookmark},
				{Type: watch.Deleted, Pod: pod("a", corev1.PodFailed), Missed: 2},
				{Type: watch.Deleted, Pod: pod("b", corev1.PodRunning)},
				{Type: watch.Deleted, Pod: pod("short", corev1.PodSucceeded), Missed: 3},
				{Type: watch.Deleted, Pod: pod("early", corev1.PodFailed)},
				{Type: watch.Modified, Pod: pod("c", corev1.PodRunning), Missed: 1},
			} {
				if !yield(e) {
					return
				}
			}
			<-ctx.Done()
		}
	}})
	events(t, c)("ADDED a Running", "ADDED b Running", "INITIAL_SYNC_COMPLETE",
		"MODIFIED a Failed", "DELETED a -", "DELETED b -", "ADDED short Succeeded", "DELETED short -", "ADDED c Running")
	require.Equal(t, []int{1, 2, 1}, []int{<-missed, <-missed, <-missed})
}

// SV-15: watches are bounded, and one that ends makes room.
func TestServer_LimitsWatches(t *testing.T) {
	var n node
	var clients []api.PodsClient // a connection has fewer streams than the Server
	c, _ := start(t, &n, podsapi.Config{})
	for range 4 {
		clients = append(clients, connect(t, n.path))
	}
	open := func(c api.PodsClient) (context.CancelFunc, error) {
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		stream, err := c.WatchPods(ctx, &api.WatchPodsRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return cancel, err
	}
	var end context.CancelFunc
	for i := range 64 {
		var err error
		end, err = open(clients[i/16])
		require.NoError(t, err)
	}
	_, err := open(c)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "more than 64 watches")
	end()
	require.Eventually(t, func() bool {
		_, err := open(c)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
}

// Watches end with the Server, and say that it is away.
func TestServer_StopEndsWatches(t *testing.T) {
	var n node
	requests := make(chan string, 10)
	c, stop := start(t, &n, podsapi.Config{Hooks: podsapi.Hooks{Requested: func(version, method, code string) {
		requests <- strings.Join([]string{version, method, code}, " ")
	}}})
	_, err := c.ListPods(t.Context(), &api.ListPodsRequest{})
	require.NoError(t, err)
	_, err = c.GetPod(t.Context(), &api.GetPodRequest{PodUID: "none"})
	require.Error(t, err)
	stream, err := c.WatchPods(t.Context(), &api.WatchPodsRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "v1alpha1 ListPods OK", <-requests)
	require.Equal(t, "v1alpha1 GetPod NotFound", <-requests)
	require.Empty(t, requests)
	stop()
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.Equal(t, "v1alpha1 WatchPods Canceled", <-requests)
}
