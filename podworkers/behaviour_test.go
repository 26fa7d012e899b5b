package podworkers_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

func create(p *corev1.Pod) podworkers.Update {
	return podworkers.Update{Type: podworkers.PodCreate, Pod: p}
}

// slow returns a fakeSyncer.do that makes syncs last for d or until cancelled.
func slow(d time.Duration) func(context.Context, string, types.UID) (runtime.SyncResult, error) {
	return func(ctx context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
		if call != "sync" {
			return runtime.SyncResult{}, nil
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return runtime.SyncResult{Unchanged: true}, nil
		case <-ctx.Done():
			return runtime.SyncResult{}, context.Cause(ctx)
		}
	}
}

// PW-4, PW-5: the causes of a termination and the resulting arguments of the Syncer.
func TestWorkers_TerminationCauses(t *testing.T) {
	kill := func(k podworkers.KillOptions) func(*podworkers.Workers) {
		return func(w *podworkers.Workers) { w.RequestKill("a", k) }
	}
	update := func(change ...func(*corev1.Pod)) func(*podworkers.Workers) {
		return func(w *podworkers.Workers) { w.Update(podworkers.Update{Pod: newTestPod("a", change...)}) }
	}
	for _, tt := range []struct {
		name  string
		spec  int64
		do    []func(*podworkers.Workers)
		want  string
		cause podworkers.Cause
	}{
		{"deletion timestamp", 30, []func(*podworkers.Workers){update(deleted(20))}, "grace=20s", podworkers.Deleted},
		{"succeeded", 30, []func(*podworkers.Workers){update(phase(corev1.PodSucceeded))}, "grace=30s", podworkers.Completed},
		{"failed", 30, []func(*podworkers.Workers){update(phase(corev1.PodFailed))}, "grace=30s", podworkers.Completed},
		{"killed", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{})}, "grace=30s", podworkers.Killed},
		{"evicted", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Termination: runtime.Termination{Evicted: true, Reason: "Evicted", GracePeriod: time.Second}})}, "grace=1s Evicted evicted", podworkers.Evicted},
		{"removed", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})}, "grace=30s deleted", podworkers.Removed},

		{"grace period of zero in the spec is one second", 0, []func(*podworkers.Workers){kill(podworkers.KillOptions{})}, "grace=1s", podworkers.Killed},
		{"deletion grace period of zero is one second", 30, []func(*podworkers.Workers){update(deleted(0))}, "grace=1s", podworkers.Deleted},
		{"deletion grace period longer than that of the spec", 30, []func(*podworkers.Workers){update(deleted(90))}, "grace=1m30s", podworkers.Deleted},
		{"a kill cannot lengthen the grace period", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: time.Minute}})}, "grace=30s", podworkers.Killed},
		{"grace period of a kill is truncated to seconds", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: 2900 * time.Millisecond}})}, "grace=2s", podworkers.Killed},
		{"grace period of a kill is at least one second", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: time.Millisecond}})}, "grace=1s", podworkers.Killed},
		{"negative grace period of a kill is ignored", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: -time.Second}})}, "grace=30s", podworkers.Killed},
		{"force sets zero", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: time.Minute}, Force: true})}, "grace=0s", podworkers.Killed},
		{"force with a grace period of zero in the spec", 0, []func(*podworkers.Workers){kill(podworkers.KillOptions{Force: true})}, "grace=0s", podworkers.Killed},
		{"the shortest grace period wins", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: 20 * time.Second}}), update(deleted(10)), kill(podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: 15 * time.Second}})}, "grace=10s", podworkers.Killed},
		{"the first reason is kept", 30, []func(*podworkers.Workers){
			kill(podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}}), kill(podworkers.KillOptions{Termination: runtime.Termination{Reason: "Preempting"}}),
			kill(podworkers.KillOptions{Termination: runtime.Termination{Reason: "Evicted", Evicted: true}}),
		}, "grace=30s Preempting evicted deleted", podworkers.Removed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSyncer{}
				// All requests come during a sync that ignores its context, so that the
				// first Terminate gets all of them.
				f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
					if call == "sync" {
						time.Sleep(time.Second)
					}
					return runtime.SyncResult{}, nil
				}
				w := runWorkers(t, f)
				w.Update(create(newTestPod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &tt.spec })))
				synctest.Wait()
				for _, do := range tt.do {
					do(w)
				}
				st, _ := w.State("a")
				assert.Equal(t, tt.cause, st.Cause)
				time.Sleep(time.Minute)
				calls := f.take()
				assert.Equal(t, []string{"0s sync a", "1s terminate a " + tt.want, "1s finish a " + tt.want}, calls)
			})
		})
	}
}

// PW-4: the Syncer reports that all containers have completed.
func TestWorkers_TerminatesCompletedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{do: func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			return runtime.SyncResult{Terminal: true}, nil
		}}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a", "0s terminate a grace=30s", "0s finish a grace=30s"}, f.take())
		assert.True(t, w.IsFinished("a"))

		// A later deletion causes one more Finish.
		w.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		synctest.Wait()
		assert.Equal(t, []string{"0s finish a grace=30s deleted"}, f.take())
		w.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		synctest.Wait()
		assert.Empty(t, f.take())
	})
}

// ST-8: a deletion timestamp that is set during or after Finish causes one more
// Finish.
func TestWorkers_CallsFinishForLateDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{do: func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "finish" {
				time.Sleep(time.Second)
			}
			return runtime.SyncResult{Terminal: true}, nil
		}}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("a")))
		w.Update(create(newTestPod("b")))
		time.Sleep(500 * time.Millisecond)
		for range 2 {
			w.Update(podworkers.Update{Pod: newTestPod("b", deleted(5))}) // during its Finish
		}
		time.Sleep(time.Minute)
		f.take()
		for _, updateType := range []podworkers.UpdateType{podworkers.PodReconcile, podworkers.PodUpdate, podworkers.PodReconcile} {
			w.Update(podworkers.Update{Type: updateType, Pod: newTestPod("a", deleted(5))})
			w.Update(podworkers.Update{Type: updateType, Pod: newTestPod("b", deleted(5))})
			time.Sleep(time.Minute)
		}
		assert.Equal(t, []string{"1m0.5s finish a grace=30s"}, f.take(), "the second Finish of b had the deletion timestamp")
		assert.True(t, w.IsFinished("a"))
	})
}

// PW-6: the termination and each shorter grace period cancel the call under way; a
// longer grace period does not.
func TestWorkers_CancelsCallUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		var causes []error
		f.do = func(ctx context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "finish" {
				return runtime.SyncResult{}, nil
			}
			err := untilCancelled(ctx)
			causes = append(causes, err)
			return runtime.SyncResult{}, err
		}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("a")))
		for _, k := range []podworkers.KillOptions{
			{}, {Termination: runtime.Termination{GracePeriod: 20 * time.Second}}, {Termination: runtime.Termination{GracePeriod: 25 * time.Second}}, {Termination: runtime.Termination{GracePeriod: time.Second}}, {Force: true}, {Force: true}, {},
		} {
			synctest.Wait()
			w.RequestKill("a", k)
		}
		synctest.Wait()
		assert.Equal(t, []string{
			"0s sync a", "0s terminate a grace=30s", "0s terminate a grace=20s", "0s terminate a grace=1s", "0s terminate a grace=0s",
		}, f.take())
		for i, err := range causes {
			want := podworkers.ErrGracePeriodShortened
			if i == 0 {
				want = podworkers.ErrTerminating
			}
			assert.ErrorIs(t, err, want, i)
		}
	})
}

// PW-2, PW-3: updates during a call are merged into one, with the newest pod and the
// oldest start time.
func TestWorkers_MergesUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{do: slow(time.Second)}
		var requested []time.Duration
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Hooks.SyncStarted = func(ctx context.Context, call podworkers.SyncCall) context.Context {
				requested = append(requested, call.RequestedAt.Sub(f.startTime))
				return ctx
			}
		})
		w.Update(create(newTestPod("a", version("1"))))
		synctest.Wait()
		for i, v := range []string{"2", "3", "4"} {
			time.Sleep(100 * time.Millisecond)
			at := time.Now()
			if i == 1 {
				at = f.startTime.Add(50 * time.Millisecond)
			}
			w.Update(podworkers.Update{Pod: newTestPod("a", version(v)), StartTime: at})
		}
		time.Sleep(5 * time.Second)
		assert.Equal(t, []string{"0s sync a v1", "1s sync a v4"}, f.take())
		assert.Equal(t, []time.Duration{0, 50 * time.Millisecond}, requested)
	})
}

// PW-2: a hung pod delays no other.
func TestWorkers_PodsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		f.do = func(ctx context.Context, _ string, uid types.UID) (runtime.SyncResult, error) {
			if uid == "hung" {
				return runtime.SyncResult{}, untilCancelled(ctx)
			}
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("hung")))
		w.Update(create(newTestPod("a")))
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{WaitUntilFinished: true}))
		assert.Zero(t, time.Since(f.startTime))
	})
}

// PW-7: Done of every kill is called once, when its condition is met.
func TestWorkers_KillWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			time.Sleep(map[string]time.Duration{"terminate": 2 * time.Second, "finish": 3 * time.Second}[call])
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		var mu sync.Mutex
		notifiedAt := map[string][]time.Duration{}
		wait := func(name string, uid types.UID, k podworkers.KillOptions, want error) {
			k.Done = func(err error) {
				mu.Lock()
				defer mu.Unlock()
				assert.ErrorIs(t, err, want, name)
				notifiedAt[name] = append(notifiedAt[name], time.Since(f.startTime))
			}
			w.RequestKill(uid, k)
		}
		wait("first", "a", podworkers.KillOptions{}, nil)
		wait("second", "a", podworkers.KillOptions{}, nil)
		wait("until finished", "a", podworkers.KillOptions{WaitUntilFinished: true}, nil)
		wait("unknown", "b", podworkers.KillOptions{}, runtime.ErrNotFound)
		time.Sleep(4 * time.Second)
		wait("terminated", "a", podworkers.KillOptions{}, nil)
		time.Sleep(4 * time.Second)
		wait("finished", "a", podworkers.KillOptions{WaitUntilFinished: true}, nil)
		w.SyncKnownPods(nil, true)
		wait("forgotten", "a", podworkers.KillOptions{}, nil)
		synctest.Wait()
		assert.Equal(t, map[string][]time.Duration{
			"first": {2 * time.Second}, "second": {2 * time.Second}, "until finished": {5 * time.Second}, "unknown": {0},
			"terminated": {4 * time.Second}, "finished": {8 * time.Second}, "forgotten": {8 * time.Second},
		}, notifiedAt)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.Update(create(newTestPod("c")))
		assert.ErrorIs(t, w.Kill(ctx, "c", podworkers.KillOptions{}), context.DeadlineExceeded)
	})
}

// PW-7, SL-7: pending kills get ErrStopped when Run ends, and no pod is terminated.
func TestWorkers_StopNotifiesKillWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		f.do = func(ctx context.Context, _ string, _ types.UID) (runtime.SyncResult, error) {
			return runtime.SyncResult{}, untilCancelled(ctx)
		}
		w, err := podworkers.New(podworkers.Config{Syncer: f, Inspector: f})
		require.NoError(t, err)
		f.startTime = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- w.Run(ctx) }()
		w.Update(create(newTestPod("terminating")))
		w.Update(create(newTestPod("syncing")))
		synctest.Wait()
		var results []error
		w.RequestKill("terminating", podworkers.KillOptions{Done: func(err error) { results = append(results, err) }})
		synctest.Wait()
		cancel()
		require.NoError(t, <-stopped)
		assert.Equal(t, []error{podworkers.ErrStopped}, results)
		f.take()
		assert.ErrorIs(t, w.Kill(t.Context(), "syncing", podworkers.KillOptions{}), podworkers.ErrStopped)
		w.Update(create(newTestPod("late")))
		time.Sleep(time.Hour)
		assert.Empty(t, f.take(), "no call after Run has ended")
	})
}
