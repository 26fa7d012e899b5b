package provider_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/provider"
)

// world is an agent with a provider.
type world struct {
	t      *testing.T
	agent  *agent.Agent
	source *podsource.Memory
	stop   func()

	mu     sync.Mutex
	events []string
}

// Record implements agent.Recorder.
func (w *world) Record(e *corev1.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e.Reason)
}

func (w *world) recorded() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.events...)
}

// start runs an agent on root until the test ends or stop is called.
func start(t *testing.T, root string, p provider.Provider, pods ...*corev1.Pod) *world {
	t.Helper()
	rt, err := provider.New(provider.Config{Provider: p})
	require.NoError(t, err)
	w := &world{t: t, source: podsource.NewMemory()}
	w.source.Set(pods...)
	w.agent, err = agent.New(
		agent.WithNodeName("n"), agent.WithRootDir(root), agent.WithRuntime(rt), agent.WithSource("memory", w.source), agent.WithRecorder(w),
		agent.WithNode(node.Config{Capacity: corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("1Ti")}, DisableCgroups: true, IPs: []string{"192.0.2.1"}}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.agent.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, rt.Close())
	})
	t.Cleanup(w.stop)
	w.wait(5 * time.Second)
	return w
}

func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// status returns the status of a pod that the agent knows.
func (w *world) status(name string) corev1.PodStatus {
	w.t.Helper()
	pod, err := w.agent.Pod("default", name)
	require.NoError(w.t, err)
	return pod.Status
}

func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// The status of a pod is what the provider reports, and what only the agent knows.
func TestRuntime_KeepsStatusOfProvider(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		w := start(t, t.TempDir(), p, newTestPod("web"))
		st := w.status("web")
		reported := p.get("web").Status
		assert.Equal(t, corev1.PodRunning, st.Phase)
		assert.Equal(t, reported.ContainerStatuses, st.ContainerStatuses)
		assert.Equal(t, "10.0.0.1", st.PodIP)
		assert.Equal(t, []corev1.PodIP{{IP: "10.0.0.1"}}, st.PodIPs)
		assert.Equal(t, "192.0.2.1", st.HostIP)
		var types []corev1.PodConditionType
		for _, c := range st.Conditions {
			types = append(types, c.Type)
		}
		assert.Equal(t, []corev1.PodConditionType{corev1.PodReady, "example.org/Warm", corev1.PodScheduled}, types)
		assert.Equal(t, []string{"CreatePod web"}, p.called())

		changed := p.get("web")
		p.set(changed, corev1.PodSucceeded)
		w.wait(3 * time.Second)
		assert.Equal(t, corev1.PodSucceeded, w.status("web").Phase)
		assert.Empty(t, p.called(), "a pod that has ended by itself is kept until it is deleted")

		w.source.Set()
		w.wait(10 * time.Second)
		assert.Equal(t, []string{"DeletePod web"}, p.called())
		assert.Empty(t, w.agent.Pods())
	})
}

// A pod that is not desired any more is deleted within its grace period.
func TestRuntime_DeletesWithGracePeriod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		pod := newTestPod("web")
		pod.Spec.TerminationGracePeriodSeconds = new(int64(7))
		w := start(t, t.TempDir(), p, pod)
		var grace []int64
		p.on("DeletePod", func(_ context.Context, pod *corev1.Pod) error {
			grace = append(grace, *pod.DeletionGracePeriodSeconds)
			time.AfterFunc(4*time.Second, func() { p.remove("web") })
			return errHandled
		})
		w.source.Set()
		w.wait(3 * time.Second)
		assert.Len(t, w.agent.Pods(), 1, "it still ends")
		w.wait(20 * time.Second)
		assert.Empty(t, w.agent.Pods())
		assert.Equal(t, []int64{7}, grace)
	})
}

func TestRuntime_UpdatesPods(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := updating{newMemory()}
		w := start(t, t.TempDir(), p, newTestPod("web"))
		require.Equal(t, []string{"CreatePod web"}, p.called())
		for name, change := range map[string]func(*corev1.Pod){
			"image":      func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "other" },
			"label":      func(pod *corev1.Pod) { pod.Labels = map[string]string{"a": "b"} },
			"annotation": func(pod *corev1.Pod) { pod.Annotations = map[string]string{"a": "b"} },
		} {
			pod := newTestPod("web")
			change(pod)
			w.source.Set(pod)
			w.wait(3 * time.Second)
			assert.Equal(t, []string{"UpdatePod web"}, p.called(), name)
		}
	})
}

// Without PodUpdater a changed spec is reported, and changed labels are not.
func TestRuntime_CannotUpdate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		w := start(t, t.TempDir(), p, newTestPod("web"))
		pod := newTestPod("web")
		pod.Labels = map[string]string{"a": "b"}
		w.source.Set(pod)
		w.wait(10 * time.Second)
		assert.NotContains(t, w.recorded(), "FailedUpdatePod")
		pod = newTestPod("web")
		pod.Spec.Containers[0].Image = "other"
		w.source.Set(pod)
		w.wait(30 * time.Second)
		assert.Contains(t, w.recorded(), "FailedUpdatePod")
		assert.Equal(t, []string{"CreatePod web"}, p.called())
		assert.Equal(t, corev1.PodRunning, w.status("web").Phase)
	})
}

// After a restart of the agent, pods of the provider are adopted, and those that no source
// contains are deleted.
func TestRuntime_AdoptsPods(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, root := updating{newMemory()}, t.TempDir()
		w := start(t, root, p, newTestPod("web"), newTestPod("old"), newTestPod("changed"))
		w.stop()
		p.called()
		p.set(newTestPod("stray"), corev1.PodRunning) // it has no annotations of the agent
		changed := newTestPod("changed")
		changed.Spec.Containers[0].Image = "v2"
		w = start(t, root, p, newTestPod("web"), changed)
		w.wait(10 * time.Second)
		assert.ElementsMatch(t, []string{"DeletePod old", "DeletePod stray", "UpdatePod changed"}, p.called())
		assert.Equal(t, corev1.PodRunning, w.status("web").Phase)
	})
}

// RT-20: a pod that the provider has lost is created again, but not if it must run at most once.
func TestRuntime_LostPods(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		once := newTestPod("once")
		once.Spec.RestartPolicy = corev1.RestartPolicyNever
		w := start(t, t.TempDir(), p, newTestPod("web"), once)
		p.called()
		p.remove("web")
		p.remove("once")
		w.wait(3 * time.Second)
		assert.ElementsMatch(t, []string{"CreatePod web", "DeletePod once"}, p.called(), "deleted, so that it does not come back")
		assert.Contains(t, w.recorded(), "PodLost")
		assert.Equal(t, corev1.PodRunning, w.status("web").Phase)
		st := w.status("once")
		assert.Equal(t, corev1.PodFailed, st.Phase)
		assert.Equal(t, "PodLost", st.Reason)
		assert.Equal(t, int32(137), st.ContainerStatuses[0].State.Terminated.ExitCode)
	})
}

// A provider that reports a created pod with delay is not asked to create it twice.
func TestRuntime_WaitsForCreatedPod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		p.on("CreatePod", func(_ context.Context, pod *corev1.Pod) error {
			time.AfterFunc(8*time.Second, func() { p.set(pod, corev1.PodRunning) })
			return errHandled
		})
		w := start(t, t.TempDir(), p, newTestPod("web"))
		w.wait(30 * time.Second)
		assert.Equal(t, []string{"CreatePod web"}, p.called())
		assert.Equal(t, corev1.PodRunning, w.status("web").Phase)
	})
}

// A failed creation is shown in the status and tried again; an invalid pod is Failed.
func TestRuntime_FailedCreation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		p.on("CreatePod", func(_ context.Context, pod *corev1.Pod) error {
			if pod.Name == "never" {
				return errors.Join(errors.New("no such machine type"), runtime.ErrInvalid)
			}
			return errors.New("quota exceeded")
		})
		w := start(t, t.TempDir(), p, newTestPod("later"), newTestPod("never"))
		st := w.status("later")
		assert.Equal(t, corev1.PodPending, st.Phase)
		assert.Equal(t, "CreatePodError", st.Reason)
		assert.Contains(t, st.Message, "quota exceeded")
		assert.Empty(t, st.ContainerStatuses)
		st = w.status("never")
		assert.Equal(t, corev1.PodFailed, st.Phase)
		assert.Equal(t, "CreatePodError", st.Reason)
		assert.Contains(t, w.recorded(), "FailedCreatePod")
		p.on("CreatePod", nil)
		w.wait(5 * time.Minute)
		st = w.status("later")
		assert.Equal(t, corev1.PodRunning, st.Phase)
		assert.Empty(t, st.Reason)
	})
}

// RT-21: a provider that hangs, panics or ignores its context delays the pod of the call only, and
// not the end of the agent.
func TestRuntime_BadCallsDelayOnlyTheirPod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		release := make(chan struct{})
		p.on("CreatePod", func(ctx context.Context, pod *corev1.Pod) error {
			switch pod.Name {
			case "panics":
				panic("no such luck")
			case "hangs":
				<-ctx.Done()
				return ctx.Err()
			case "ignores":
				<-release
			}
			return nil
		})
		w := start(t, t.TempDir(), p, newTestPod("panics"), newTestPod("hangs"), newTestPod("ignores"), newTestPod("web"))
		w.wait(10 * time.Minute)
		assert.Equal(t, corev1.PodRunning, w.status("web").Phase)
		for _, name := range []string{"panics", "hangs", "ignores"} {
			assert.Equal(t, "CreatePodError", w.status(name).Reason, name)
		}
		startTime := time.Now()
		w.stop()
		assert.Less(t, time.Since(startTime), 30*time.Second)
		close(release)
	})
}
