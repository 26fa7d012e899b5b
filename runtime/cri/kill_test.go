package cri

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// running starts all containers of the pod and returns what is seen of it.
func running(t *testing.T, f *fake, c *Client, pod *corev1.Pod) runtime.Pod {
	f.addImage(busybox)
	plan := []runtime.Action{{Type: runtime.CreateSandbox}}
	for ct, kind := range runtime.ContainerSpecs(pod) {
		plan = append(plan, runtime.Action{Type: runtime.StartContainer, Container: ct.Name, ContainerType: kind})
	}
	require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
	observed, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	return observed
}

func sleepHook(seconds int64) *corev1.Lifecycle {
	return &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}}
}

// RT-9: the hook counts inside the grace period, all containers at once, then
// the sandbox.
func TestKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, rec := newFake(), &fakeRecorder{}
		c := f.client(t, Config{Recorder: rec})
		pod := onePod("hooked", "plain", "slow")
		pod.Spec.Containers[0].Lifecycle = sleepHook(10)
		pod.Spec.Containers[2].Lifecycle = sleepHook(1000)
		observed := running(t, f, c, pod)
		f.took()
		began := time.Now()
		require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 30 * time.Second}))
		assert.Equal(t, 30*time.Second, time.Since(began))
		assert.Equal(t, int64(20), f.stops[observed.LatestContainer("hooked").ID])
		assert.Equal(t, int64(30), f.stops[observed.LatestContainer("plain").ID])
		assert.Equal(t, int64(2), f.stops[observed.LatestContainer("slow").ID], "the hook used the grace up")
		assert.Contains(t, rec.text(), "FailedPreStopHook")
		calls := f.took()
		assert.Equal(t, "StopPodSandbox", calls[len(calls)-1])

		after, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.False(t, after.CouldHaveRunningContainers())
		assert.Nil(t, after.ReadySandbox())
		require.NoError(t, c.Remove(t.Context(), after))
		exited, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.Empty(t, exited.Sandboxes)
		assert.Empty(t, exited.Containers)
		assert.Empty(t, c.facts.pods)
		assert.Empty(t, c.hooked.ids)
	})
}

// RT-6: sidecars end after the regular containers, in reverse order.
func TestKill_SidecarsLast(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	pod := onePod("main")
	always := corev1.ContainerRestartPolicyAlways
	for _, name := range []string{"first", "second"} {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, Image: busybox, RestartPolicy: &always})
	}
	observed := running(t, f, c, pod)
	var order []string
	var mu sync.Mutex
	f.setBefore(func(_ context.Context, rpc string, req any) error {
		if r, ok := req.(*v1.StopContainerRequest); ok && rpc == "StopContainer" {
			mu.Lock()
			order = append(order, byID(observed.Containers, r.ContainerId).Name)
			mu.Unlock()
		}
		return nil
	})
	require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 5 * time.Second}))
	assert.Equal(t, []string{"main", "second", "first"}, order)
}

// RT-6, RT-9: stages of a plan end one after the other, all within the grace
// period that began with the first.
func TestApply_KillsInStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.client(t, Config{})
		pod := onePod("main", "beside", "last", "leftover")
		pod.Spec.Containers[0].Lifecycle = sleepHook(10)
		observed := running(t, f, c, pod)
		id := func(name string) string { return observed.LatestContainer(name).ID }
		kill := func(name string, stage int) runtime.Action {
			return runtime.Action{Type: runtime.KillContainer, Container: name, ID: id(name), Stage: stage, GracePeriod: 30 * time.Second}
		}
		f.took()
		plan := []runtime.Action{kill("main", 0), kill("beside", 0), kill("last", 1), kill("leftover", 2)}
		require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
		assert.Equal(t, int64(30), f.stops[id("beside")], "with the first, whose hook runs meanwhile")
		assert.Equal(t, int64(20), f.stops[id("main")])
		assert.Equal(t, int64(20), f.stops[id("last")], "after them, in the time that is left")
		assert.Equal(t, int64(20), f.stops[id("leftover")])
	})
}

// PW-5: a forced kill runs no hook and has no grace.
func TestKill_ForcedRunsNoHook(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	pod := onePod("main")
	pod.Spec.Containers[0].Lifecycle = sleepHook(1000)
	observed := running(t, f, c, pod)
	require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{}))
	assert.Equal(t, int64(0), f.stops[observed.Containers[0].ID])
}

// A kill that was cut short by a shorter grace does not run the hook again if
// it was through.
func TestKill_RunsAHookOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		hooks := 0
		f.execute = func(*v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) { hooks++; return &v1.ExecSyncResponse{}, nil }
		c := f.client(t, Config{})
		pod := onePod("main")
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"drain"}}}}
		observed := running(t, f, c, pod)
		f.setBefore(func(ctx context.Context, rpc string, _ any) error {
			if rpc == "StopContainer" {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, c.Kill(ctx, pod, observed, runtime.Termination{GracePeriod: 30 * time.Second}), context.DeadlineExceeded)
		f.setBefore(nil)
		require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 2 * time.Second}))
		assert.Equal(t, 1, hooks)
	})
}

// A grace period without an end does not overflow the deadline of the call.
func TestKill_EndlessGrace(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	pod := onePod("main")
	pod.Spec.TerminationGracePeriodSeconds = new(int64(math.MaxInt64))
	observed := running(t, f, c, pod)
	f.took()
	require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: podspec.GracePeriod(pod)}))
	assert.Equal(t, 1, f.count("StopContainer"))
	assert.Positive(t, f.stops[observed.Containers[0].ID])
}

// PW-11: an orphan is ended by what it carries itself.
func TestKill_Orphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.client(t, Config{})
		pod := onePod("main")
		pod.Spec.Containers[0].Lifecycle = sleepHook(4)
		observed := running(t, f, c, pod)
		stand := &corev1.Pod{}
		stand.UID, stand.Name, stand.Namespace = observed.UID, observed.Name, observed.Namespace
		require.NoError(t, c.Kill(t.Context(), stand, observed, runtime.Termination{GracePeriod: observed.Containers[0].GracePeriod}))
		assert.Equal(t, int64(26), f.stops[observed.Containers[0].ID])
	})
}

func TestRemove_RefusesRunningContainers(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	observed := running(t, f, c, onePod("main"))
	require.ErrorIs(t, c.Remove(t.Context(), observed), runtime.ErrNotReady)
	assert.Zero(t, f.count("RemovePodSandbox"))
}

// A container that cannot be ended is not started a second time.
func TestApply_NoStartAfterAFailedKill(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	pod := onePod("main")
	observed := running(t, f, c, pod)
	f.setBefore(func(_ context.Context, rpc string, _ any) error {
		if rpc == "StopContainer" {
			return status.Error(codes.Internal, "stuck")
		}
		return nil
	})
	f.took()
	applied := c.Apply(t.Context(), pod, []runtime.Action{
		{Type: runtime.KillContainer, Container: "main", ID: observed.Containers[0].ID, GracePeriod: time.Second},
		{Type: runtime.StartContainer, Container: "main", Attempt: 1},
	}, runtime.RunOptions{})
	assert.Equal(t, "KillContainerError", applied.Failures["main"].Reason)
	assert.Zero(t, f.count("CreateContainer"))
}

// A container whose stop the runtime has not answered keeps its grace period: neither those of later
// stages nor the sandbox are stopped. One that the runtime refuses to stop ends with its sandbox.
func TestApply_UnansweredStopKeepsTheSandbox(t *testing.T) {
	for code, want := range map[codes.Code][]string{
		codes.ResourceExhausted: {"StopContainer"}, codes.Unknown: {"StopContainer", "StopContainer", "StopPodSandbox"},
	} {
		f := newFake()
		c := f.client(t, Config{})
		pod := onePod("main", "last")
		observed := running(t, f, c, pod)
		main := observed.LatestContainer("main").ID
		f.setBefore(func(_ context.Context, rpc string, req any) error {
			if r, ok := req.(*v1.StopContainerRequest); ok && rpc == "StopContainer" && r.ContainerId == main {
				return status.Error(code, "later")
			}
			return nil
		})
		f.took()
		applied := c.Apply(t.Context(), pod, []runtime.Action{
			{Type: runtime.KillContainer, Container: "main", ID: main, GracePeriod: time.Second},
			{Type: runtime.KillContainer, Container: "last", ID: observed.LatestContainer("last").ID, Stage: 1, GracePeriod: time.Second},
			{Type: runtime.KillSandbox, ID: observed.Sandboxes[0].ID},
			{Type: runtime.CreateSandbox, Attempt: 1},
		}, runtime.RunOptions{})
		assert.Equal(t, "KillContainerError", applied.Failures["main"].Reason)
		calls := f.took()
		assert.Equal(t, want, calls[:min(len(want), len(calls))], "%v: %v", code, calls)
		assert.Equal(t, code == codes.Unknown, slices.Contains(calls, "RunPodSandbox"))
	}
}

// A hung stop is bounded by the grace period and the deadline of the call, and
// holds up no other container.
func TestKill_HungStopDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.client(t, Config{})
		pod := onePod("a", "b")
		observed := running(t, f, c, pod)
		f.setBefore(func(ctx context.Context, rpc string, req any) error {
			if r, ok := req.(*v1.StopContainerRequest); ok && rpc == "StopContainer" && r.ContainerId == observed.LatestContainer("a").ID {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		began := time.Now()
		err := c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 10 * time.Second})
		require.ErrorIs(t, err, runtime.ErrDeadlineExceeded)
		assert.ErrorContains(t, err, "StopContainer "+observed.LatestContainer("a").ID+": no answer within 2m10s")
		assert.Equal(t, 130*time.Second, time.Since(began))
		assert.True(t, slices.Contains(f.took(), "StopContainer"))
		assert.Contains(t, f.stops, observed.LatestContainer("b").ID)
	})
}

// RT-9: where a rule restarts all containers, none is started while another one still runs, as the
// init containers would be.
func TestApply_RestartOfAllWaitsForStops(t *testing.T) {
	for name, answer := range map[string]error{"refused": status.Error(codes.Unknown, "rejected"), "unanswered": status.Error(codes.Unavailable, "away")} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c := f.client(t, Config{})
			pod := onePod("main")
			id := running(t, f, c, pod).Containers[0].ID
			pod.Spec.InitContainers = []corev1.Container{*pod.Spec.Containers[0].DeepCopy()}
			pod.Spec.InitContainers[0].Name = "init"
			f.setBefore(func(_ context.Context, rpc string, _ any) error {
				if rpc == "StopContainer" {
					return answer
				}
				return nil
			})
			f.took()
			plan := []runtime.Action{
				{Type: runtime.KillContainer, Container: "main", ID: id, Reason: runtime.ReasonRestartAll},
				{Type: runtime.StartContainer, Container: "init", ContainerType: runtime.Init, Attempt: 1, RestartGeneration: 1},
			}
			failures := c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures
			require.Error(t, failures["main"].Err)
			require.EqualError(t, failures["init"].Err, "not started, because container main, which is restarted with all others, could not be stopped")
			assert.Zero(t, f.count("CreateContainer"))

			f.setBefore(nil)
			require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
			assert.Equal(t, 1, f.count("CreateContainer"))
		})
	}
}
