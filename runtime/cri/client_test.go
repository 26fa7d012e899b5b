package cri

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

const busybox = "lab/busybox:1"

// onePod is a pod with a container for each name.
func onePod(names ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "uid-1"}}
	for _, n := range names {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: n, Image: busybox})
	}
	podspec.Default(pod)
	return pod
}

// startAll is the plan that starts a pod's regular containers from nothing.
func startAll(pod *corev1.Pod) []runtime.Action {
	plan := []runtime.Action{{Type: runtime.CreateSandbox}}
	for _, ct := range pod.Spec.Containers {
		plan = append(plan, runtime.Action{Type: runtime.StartContainer, Container: ct.Name})
	}
	return plan
}

// RT-12, and the budget of calls: starting a pod of one container whose image
// is present takes at most six with the inspection after it.
func TestStartAndInspectionTakeSixCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.addImage(busybox)
		c := f.client(t, Config{})
		pod := onePod("main")
		applied := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{LogDir: "/logs"})
		require.Empty(t, applied.Failures)
		assert.True(t, applied.Changed)

		observed, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{
			"ImageStatus", "RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer", "ContainerStatus",
		}, f.took())
		require.Len(t, observed.Containers, 1)
		got := observed.Containers[0]
		assert.Equal(t, "main", got.Name)
		assert.Equal(t, runtime.Running, got.State)
		assert.Equal(t, busybox, got.Image)
		assert.Equal(t, "/logs/main/0.log", got.LogPath)
		assert.Equal(t, 30*time.Second, got.GracePeriod)
		assert.NotEmpty(t, got.Hash)
		assert.Equal(t, []string{"10.0.0.7"}, observed.ReadySandbox().IPs)
		assert.Equal(t, "web", observed.Name)

		// What cannot have changed is not asked for again.
		_, err = c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{"ListPodSandbox", "ListContainers"}, f.took())
	})
}

// A pod of a list is completed by its statuses alone, with the same result as an
// inspection of its own, also if its container has exited since.
func TestClient_InspectListedPod(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	pod := onePod("main")
	require.Empty(t, f.client(t, Config{}).Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
	for _, exits := range []bool{false, true} {
		c := f.client(t, Config{}) // of an agent that starts
		listed, err := c.Pods(t.Context())
		require.NoError(t, err)
		require.Len(t, listed, 1)
		if exits {
			f.mu.Lock()
			f.exit(listed[0].Containers[0].ID, 3)
			f.mu.Unlock()
		}
		f.took()
		got, err := c.InspectListedPod(t.Context(), listed[0])
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{"PodSandboxStatus", "ContainerStatus"}, f.took())
		want, err := f.client(t, Config{}).Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		want.ObservedAt = got.ObservedAt
		assert.Equal(t, want, got)
		assert.Empty(t, listed[0].Sandboxes[0].IPs, "the list is not changed")
		f.took()
		_, err = c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{"ListPodSandbox", "ListContainers"}, f.took(), "the statuses are known")
	}
}

// A list that lacks the sandbox of a running container is completed: without it the pod would
// be replaced. A sandbox of another pod or owner is not taken for it, and one that is gone costs
// one call.
func TestClient_InspectListedPod_UnlistedSandbox(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	pod := onePod("main")
	require.Empty(t, f.client(t, Config{}).Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
	c := f.client(t, Config{})
	listed, err := c.Pods(t.Context())
	require.NoError(t, err)
	require.Len(t, listed, 1)
	want, err := c.InspectListedPod(t.Context(), listed[0])
	require.NoError(t, err)
	require.Len(t, want.Sandboxes, 1)
	short := listed[0]
	short.Sandboxes = nil

	f.took()
	c = f.client(t, Config{})
	got, err := c.InspectListedPod(t.Context(), short)
	require.NoError(t, err)
	got.ObservedAt = want.ObservedAt
	assert.Equal(t, want, got)
	assert.ElementsMatch(t, []string{"PodSandboxStatus", "ContainerStatus"}, f.took())

	got, err = f.client(t, Config{Owner: "another"}).InspectListedPod(t.Context(), short)
	require.NoError(t, err)
	assert.Empty(t, got.Sandboxes, "of another owner")
	foreign := short
	foreign.UID = "uid-of-another"
	got, err = f.client(t, Config{}).InspectListedPod(t.Context(), foreign)
	require.NoError(t, err)
	assert.Empty(t, got.Sandboxes, "of another pod")

	require.NoError(t, f.client(t, Config{}).RemoveSandbox(t.Context(), want.Sandboxes[0].ID))
	f.took()
	got, err = f.client(t, Config{}).InspectListedPod(t.Context(), short)
	require.NoError(t, err)
	assert.Empty(t, got.Sandboxes, "gone")
	assert.ElementsMatch(t, []string{"PodSandboxStatus", "ContainerStatus"}, f.took())
}

func TestInspectionOfNothingIsAnEmptyPod(t *testing.T) {
	c := newFake().client(t, Config{})
	observed, err := c.Pod(t.Context(), "uid-0")
	require.NoError(t, err)
	assert.Equal(t, types.UID("uid-0"), observed.UID)
	assert.Empty(t, observed.Sandboxes)
	assert.False(t, observed.ObservedAt.IsZero())
}

// An exited container is asked for once, when it has ended.
func TestInspectionSeesAnExit(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	pod := onePod("main")
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
	observed, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)

	f.mu.Lock()
	f.exit(observed.Containers[0].ID, 3)
	f.mu.Unlock()
	for range 2 {
		observed, err = c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.Equal(t, runtime.Exited, observed.Containers[0].State)
		assert.Equal(t, int32(3), observed.Containers[0].ExitCode)
		assert.False(t, observed.Containers[0].Finished.IsZero())
	}
	assert.Equal(t, 2, f.count("ContainerStatus"))
}

// PL-5: a listing is two calls, streamed where the runtime can, and a runtime
// that cannot is asked for streams once only. RT-18
func TestListing(t *testing.T) {
	for _, streams := range []bool{false, true} {
		f := newFake()
		f.streams = streams
		f.addImage(busybox)
		c := f.client(t, Config{})
		pod := onePod("a", "b")
		require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
		f.took()
		for range 2 {
			pods, err := c.Pods(t.Context())
			require.NoError(t, err)
			require.Len(t, pods, 1)
			assert.Len(t, pods[0].Containers, 2)
			assert.Len(t, pods[0].Sandboxes, 1)
		}
		if streams {
			assert.ElementsMatch(t, []string{"StreamPodSandboxes", "StreamContainers", "StreamPodSandboxes", "StreamContainers"}, f.took())
			continue
		}
		assert.Equal(t, 1, f.count("StreamPodSandboxes"))
		assert.Equal(t, 2, f.count("ListPodSandbox"))
		assert.Equal(t, 1, f.count("StreamContainers"))
		assert.Equal(t, 2, f.count("ListContainers"))
	}
}

// RT-15
func TestEveryCallHasADeadlineThatNamesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.setBefore(func(ctx context.Context, _ string, _ any) error { <-ctx.Done(); return ctx.Err() })
		c := f.client(t, Config{})
		began := time.Now()
		_, err := c.Pod(t.Context(), "uid-1")
		require.ErrorIs(t, err, runtime.ErrDeadlineExceeded)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 2*time.Minute, time.Since(began))
		assert.ErrorContains(t, err, "ListPodSandbox: no answer within 2m0s")
		var wire interface{ GRPCStatus() *status.Status }
		require.ErrorAs(t, err, &wire)
		assert.Equal(t, codes.DeadlineExceeded, wire.GRPCStatus().Code())
	})
}

func TestErrorsAreMappedOnceAndKeepTheirCode(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.NotFound: runtime.ErrNotFound, codes.Unavailable: runtime.ErrUnavailable, codes.Unimplemented: runtime.ErrUnsupported,
		codes.InvalidArgument: runtime.ErrInvalid, codes.AlreadyExists: runtime.ErrAlreadyExists, codes.DeadlineExceeded: runtime.ErrDeadlineExceeded,
		codes.PermissionDenied: runtime.ErrUnauthorized,
	} {
		f := newFake()
		f.setBefore(func(context.Context, string, any) error { return status.Error(code, "because") })
		_, err := f.client(t, Config{}).Status(t.Context())
		require.ErrorIs(t, err, want, code)
		assert.ErrorContains(t, err, "Version: because")
		assert.Equal(t, code, status.Code(err))
	}
}

func TestWatch(t *testing.T) {
	t.Run("a runtime without events", func(t *testing.T) {
		err := newFake().client(t, Config{}).Watch(t.Context(), func(types.UID) {})
		assert.ErrorIs(t, err, runtime.ErrUnsupported)
	})
	t.Run("hints, then a broken stream", func(t *testing.T) {
		f := newFake()
		f.events = make(chan *v1.ContainerEventResponse, 2)
		ours := map[string]string{runtime.LabelOwner: DefaultOwner, runtime.LabelPodUID: "u2"}
		f.events <- &v1.ContainerEventResponse{PodSandboxStatus: &v1.PodSandboxStatus{Metadata: &v1.PodSandboxMetadata{Uid: "u1"}, Labels: ours}}
		f.events <- &v1.ContainerEventResponse{ContainersStatuses: []*v1.ContainerStatus{{Labels: ours}}}
		close(f.events)
		var hints []types.UID
		err := f.client(t, Config{}).Watch(t.Context(), func(u types.UID) { hints = append(hints, u) })
		assert.Equal(t, []types.UID{"u1", "u2"}, hints)
		assert.ErrorIs(t, err, runtime.ErrUnavailable)
	})
}

func TestHealth(t *testing.T) {
	h, err := newFake().client(t, Config{}).Status(t.Context())
	require.NoError(t, err)
	assert.True(t, h.RuntimeReady)
	assert.True(t, h.NetworkReady)
	assert.Len(t, h.Conditions, 3)
}

func TestDialRefusesOtherEndpoints(t *testing.T) {
	for _, endpoint := range []string{"", "tcp://127.0.0.1:1", "unix://relative", "/run/x.sock"} {
		_, err := Dial(endpoint)
		assert.Error(t, err, endpoint)
	}
}
