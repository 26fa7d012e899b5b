package provider_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// A notification ends the wait for the end of a pod.
func TestRuntime_Kill_EndsWithNotification(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := &notifying{memory: newMemory()}
		rt := newTestRuntime(t, p)
		go func() { _ = rt.Watch(t.Context(), func(types.UID) {}) }()
		synctest.Wait()
		pod := newTestPod("web")
		create(t, rt, pod)
		p.on("DeletePod", func(context.Context, *corev1.Pod) error {
			time.AfterFunc(7010*time.Millisecond, func() {
				last := p.get("web")
				last.Status.Phase = corev1.PodSucceeded
				p.remove("web")
				p.notify(last)
			})
			return errHandled
		})
		startTime := time.Now()
		require.NoError(t, rt.Kill(t.Context(), pod, observe(t, rt, "web"), runtime.Termination{GracePeriod: 30 * time.Second}))
		assert.Equal(t, 7010*time.Millisecond, time.Since(startTime))
		assert.Equal(t, corev1.PodSucceeded, observe(t, rt, "web").Object.Status.Phase)
	})
}

// Without notifications the pod is polled, less and less often.
func TestRuntime_Kill_Polls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := getting{newMemory()}
		rt := newTestRuntime(t, p)
		pod := newTestPod("web")
		create(t, rt, pod)
		observed := observe(t, rt, "web")
		p.on("DeletePod", func(context.Context, *corev1.Pod) error {
			time.AfterFunc(40*time.Second, func() { p.remove("web") })
			return errHandled
		})
		polls := 0
		p.on("GetPod", func(context.Context, *corev1.Pod) error { polls++; return nil })
		require.NoError(t, rt.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 50 * time.Second}))
		assert.Equal(t, 14, polls)
	})
}

// A pod has not ended because the provider does not answer.
func TestRuntime_Kill_WithoutAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		rt := newTestRuntime(t, p)
		pod := newTestPod("web")
		create(t, rt, pod)
		p.on("DeletePod", func(context.Context, *corev1.Pod) error { return errHandled })
		p.on("GetPods", func(context.Context, *corev1.Pod) error { return errors.New("no answer") })
		time.AfterFunc(20*time.Second, func() { p.remove("web"); p.on("GetPods", nil) })
		startTime := time.Now()
		require.NoError(t, rt.Kill(t.Context(), pod, runtime.Pod{UID: "uid-web", Object: pod}, runtime.Termination{GracePeriod: 30 * time.Second}))
		assert.GreaterOrEqual(t, time.Since(startTime), 20*time.Second)
	})
}

// A grace period without an end does not overflow the time limit of the wait.
func TestRuntime_Kill_EndlessGrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		rt := newTestRuntime(t, p)
		pod := newTestPod("web")
		pod.Spec.TerminationGracePeriodSeconds = new(int64(math.MaxInt64))
		create(t, rt, pod)
		p.on("DeletePod", func(context.Context, *corev1.Pod) error {
			time.AfterFunc(time.Hour, func() { p.remove("web") })
			return errHandled
		})
		startTime := time.Now()
		require.NoError(t, rt.Kill(t.Context(), pod, observe(t, rt, "web"), runtime.Termination{GracePeriod: podspec.GracePeriod(pod)}))
		assert.GreaterOrEqual(t, time.Since(startTime), time.Hour)
		assert.Equal(t, []string{"CreatePod web", "DeletePod web"}, p.called())
	})
}

func TestRuntime_Kill(t *testing.T) {
	ended := newTestPod("web")
	ended.Status.Phase = corev1.PodFailed
	for name, c := range map[string]struct {
		observed runtime.Pod
		created  bool
		hook     func(context.Context, *corev1.Pod) error
		calls    []string
		wantErr  string
	}{
		"a pod that was never created":        {observed: runtime.Pod{UID: "uid-web"}},
		"a pod that has ended":                {observed: runtime.Pod{UID: "uid-web", Object: ended}},
		"a running pod":                       {observed: runtime.Pod{UID: "uid-web", Object: newTestPod("web")}, created: true, calls: []string{"DeletePod web"}},
		"one that is not reported yet":        {observed: runtime.Pod{UID: "uid-web"}, created: true, calls: []string{"DeletePod web"}},
		"one that the provider does not have": {observed: runtime.Pod{UID: "uid-web", Object: newTestPod("web")}, calls: []string{"DeletePod web"}},
		"an error": {
			observed: runtime.Pod{UID: "uid-web", Object: newTestPod("web")}, created: true, calls: []string{"DeletePod web"},
			hook: func(context.Context, *corev1.Pod) error { return errors.New("no answer") }, wantErr: "delete pod: no answer",
		},
		"one that does not end": {
			observed: runtime.Pod{UID: "uid-web", Object: newTestPod("web")}, created: true, calls: []string{"DeletePod web"},
			hook: func(context.Context, *corev1.Pod) error { return errHandled }, wantErr: "still reports the pod as running",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newMemory()
				rt := newTestRuntime(t, p)
				if c.created {
					create(t, rt, newTestPod("web"))
				}
				p.called()
				p.on("DeletePod", c.hook)
				startTime := time.Now()
				err := rt.Kill(t.Context(), newTestPod("web"), c.observed, runtime.Termination{GracePeriod: time.Second})
				if c.wantErr == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.wantErr)
				}
				assert.Equal(t, c.calls, p.called())
				assert.LessOrEqual(t, time.Since(startTime), 2*time.Minute+time.Second)
			})
		})
	}
}

// A provider gets the pod that it has reported if no source has it any more.
func TestRuntime_Kill_Orphan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		p.set(newTestPod("web"), corev1.PodRunning)
		rt := newTestRuntime(t, p)
		var deleted *corev1.Pod
		p.on("DeletePod", func(_ context.Context, pod *corev1.Pod) error { deleted = pod; return nil })
		orphan := &corev1.Pod{}
		orphan.UID, orphan.Namespace, orphan.Name = "uid-web", "default", "web"
		require.NoError(t, rt.Kill(t.Context(), orphan, observe(t, rt, "web"), runtime.Termination{GracePeriod: 9 * time.Second}))
		require.Len(t, deleted.Spec.Containers, 1)
		assert.Equal(t, int64(9), *deleted.DeletionGracePeriodSeconds)
		assert.Equal(t, 9*time.Second, time.Until(deleted.DeletionTimestamp.Time))
		assert.Empty(t, listed(t, rt))
	})
}

func TestRuntime_Remove(t *testing.T) {
	p := newMemory()
	rt := newTestRuntime(t, p)
	pod := newTestPod("web")
	create(t, rt, pod)
	require.ErrorContains(t, rt.Remove(t.Context(), observe(t, rt, "web")), "running")
	p.set(pod, corev1.PodFailed)
	p.on("DeletePod", func(context.Context, *corev1.Pod) error { return errors.New("no answer") })
	require.ErrorContains(t, rt.Remove(t.Context(), observe(t, rt, "web")), "no answer")
	p.on("DeletePod", nil)
	p.called()
	require.NoError(t, rt.Remove(t.Context(), observe(t, rt, "web")))
	require.NoError(t, rt.Remove(t.Context(), runtime.Pod{UID: "uid-web"}))
	assert.Equal(t, []string{"DeletePod web"}, p.called())
	assert.Empty(t, listed(t, rt))
}

// A pod is not created while the provider has another one of its name.
func TestRuntime_SyncPod_NameInUse(t *testing.T) {
	p := newMemory()
	rt := newTestRuntime(t, p)
	create(t, rt, newTestPod("web"))
	other := newTestPod("web")
	other.UID = "uid-2"
	_, err := rt.SyncPod(t.Context(), other, runtime.Pod{UID: other.UID})
	require.ErrorIs(t, err, runtime.ErrAlreadyExists)
	require.ErrorContains(t, err, "uid-web")

	elsewhere := newTestPod("web")
	elsewhere.UID, elsewhere.Namespace = "uid-3", "other"
	create(t, rt, elsewhere)

	p.set(newTestPod("web"), corev1.PodFailed)
	require.NoError(t, rt.Remove(t.Context(), observe(t, rt, "web")))
	create(t, rt, other)
	assert.Equal(t, []types.UID{"uid-2", "uid-3"}, listed(t, rt))

	p.set(&corev1.Pod{ObjectMeta: other.ObjectMeta}, corev1.PodSucceeded)
	listed(t, rt)
	third := newTestPod("web")
	third.UID = "uid-4"
	_, err = rt.SyncPod(t.Context(), third, runtime.Pod{UID: third.UID})
	require.ErrorIs(t, err, runtime.ErrAlreadyExists, "the removal of the one that has ended would remove this one")
	ended, err := rt.Pod(t.Context(), "uid-2")
	require.NoError(t, err)
	require.NoError(t, rt.Remove(t.Context(), ended))
	create(t, rt, third)
}

// One pod that an earlier process has created also reserves its name.
func TestRuntime_SyncPod_NameInUseByAdoptedPod(t *testing.T) {
	p := newMemory()
	p.set(newTestPod("web"), corev1.PodRunning)
	rt := newTestRuntime(t, p)
	listed(t, rt)
	other := newTestPod("web")
	other.UID = "uid-2"
	_, err := rt.SyncPod(t.Context(), other, runtime.Pod{UID: other.UID})
	require.ErrorIs(t, err, runtime.ErrAlreadyExists)
	p.remove("web")
	listed(t, rt)
	create(t, rt, other)
}

// A pod that was created and is not reported yet is expected for a while.
func TestRuntime_SyncPod_ExpectsCreatedPod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		p.on("CreatePod", func(context.Context, *corev1.Pod) error { return errHandled })
		rt := newTestRuntime(t, p)
		create(t, rt, newTestPod("web"))
		result, err := rt.SyncPod(t.Context(), newTestPod("web"), runtime.Pod{UID: "uid-web"})
		require.NoError(t, err)
		assert.True(t, result.Unchanged)
		assert.Equal(t, 10*time.Second, time.Until(result.RequeueAt))
		time.Sleep(10 * time.Second)
		result, err = rt.SyncPod(t.Context(), newTestPod("web"), runtime.Pod{UID: "uid-web"})
		require.NoError(t, err)
		assert.Equal(t, runtime.SyncResult{}, result)
		assert.Equal(t, []string{"CreatePod web", "CreatePod web"}, p.called())
	})
}

func TestRuntime_SyncPod_Adopts(t *testing.T) {
	pod := newTestPod("web")
	pod.Annotations = map[string]string{"kubernetes.io/config.seen": "now"}
	same, labelled, changed := newTestPod("web"), newTestPod("web"), newTestPod("web")
	same.Annotations = map[string]string{"kubernetes.io/config.seen": "earlier"}
	labelled.Labels, changed.Spec.Containers[0].Image = map[string]string{"a": "b"}, "other"
	for name, c := range map[string]struct {
		object  *corev1.Pod
		updates bool
	}{"the same": {same, false}, "other labels": {labelled, true}, "another spec": {changed, true}} {
		t.Run(name, func(t *testing.T) {
			p := updating{newMemory()}
			rt := newTestRuntime(t, p)
			result, err := rt.SyncPod(t.Context(), pod, runtime.Pod{UID: pod.UID, Object: c.object})
			require.NoError(t, err)
			assert.Equal(t, !c.updates, result.Unchanged)
			assert.Equal(t, c.updates, len(p.called()) == 1)
			result, err = rt.SyncPod(t.Context(), pod, runtime.Pod{UID: pod.UID, Object: c.object})
			require.NoError(t, err)
			assert.True(t, result.Unchanged, "it was updated")

			plain := newMemory()
			result, err = newTestRuntime(t, plain).SyncPod(t.Context(), pod, runtime.Pod{UID: pod.UID, Object: c.object})
			require.NoError(t, err, "a provider that cannot update need not store specs")
			assert.True(t, result.Unchanged)
		})
	}
}

// An update that fails is tried again.
func TestRuntime_SyncPod_UpdateFails(t *testing.T) {
	p := updating{newMemory()}
	rt := newTestRuntime(t, p)
	create(t, rt, newTestPod("web"))
	changed := newTestPod("web")
	changed.Spec.Containers[0].Image = "other"
	p.on("UpdatePod", func(context.Context, *corev1.Pod) error { return errors.New("no answer") })
	for range 2 {
		_, err := rt.SyncPod(t.Context(), changed, observe(t, rt, "web"))
		require.ErrorContains(t, err, "update pod: no answer")
	}
}

// The provider gets a copy of the pod: the desired one is shared.
func TestRuntime_SyncPod_CopiesPod(t *testing.T) {
	p := newMemory()
	p.on("CreatePod", func(_ context.Context, pod *corev1.Pod) error { pod.Name = "changed"; return errHandled })
	pod := newTestPod("web")
	create(t, newTestRuntime(t, p), pod)
	assert.Equal(t, "web", pod.Name)
}

// RT-21: a call waits for the previous one of its pod, and not for those of others.
func TestRuntime_CallsOfOnePodDoNotOverlap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		rt := newTestRuntime(t, p)
		release := make(chan struct{})
		p.on("CreatePod", func(_ context.Context, pod *corev1.Pod) error {
			if pod.Name == "web" {
				<-release
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		created := make(chan error, 1)
		go func() {
			_, err := rt.SyncPod(ctx, newTestPod("web"), runtime.Pod{UID: "uid-web"})
			created <- err
		}()
		synctest.Wait()
		create(t, rt, newTestPod("other"))
		startTime := time.Now()
		cancel()
		require.ErrorIs(t, <-created, context.Canceled)
		assert.Equal(t, 5*time.Second, time.Since(startTime), "it had time to return")

		killed := make(chan error, 1)
		go func() {
			killed <- rt.Kill(t.Context(), newTestPod("web"), runtime.Pod{UID: "uid-web"}, runtime.Termination{GracePeriod: time.Second})
		}()
		time.Sleep(time.Second)
		assert.NotContains(t, p.called(), "DeletePod web")
		close(release)
		require.NoError(t, <-killed)
		assert.Equal(t, []string{"DeletePod web"}, p.called())
		assert.Nil(t, p.get("web"), "what was created late is deleted")
	})
}

// A call that does not return makes the next one of its pod an error. A pod that is created late is not created twice: the
// next sync is one that has observed it.
func TestRuntime_CallThatNeverReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		rt := newTestRuntime(t, p)
		release := make(chan struct{})
		p.on("CreatePod", func(context.Context, *corev1.Pod) error { <-release; return nil })
		_, err := rt.SyncPod(t.Context(), newTestPod("web"), runtime.Pod{UID: "uid-web"})
		require.ErrorContains(t, err, "create pod: no answer")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.AfterFunc(time.Second, func() { close(release) })
		_, err = rt.SyncPod(t.Context(), newTestPod("web"), runtime.Pod{UID: "uid-web"})
		require.EqualError(t, err, "create pod: the previous call has not returned")
		time.Sleep(2 * time.Second)
		_, err = rt.SyncPod(t.Context(), newTestPod("web"), observe(t, rt, "web"))
		require.NoError(t, err)
		assert.Equal(t, []string{"CreatePod web"}, p.called())
	})
}
