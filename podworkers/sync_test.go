package podworkers_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// PW-14: each sync gets a state observed after the last call that may have changed
// the pod. A failed call may have, whatever it returns.
func TestWorkers_SyncSeesStateNewerThanLastSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		results := []runtime.SyncResult{{}, {Unchanged: true}, {Unchanged: true}, {Unchanged: true}, {Unchanged: true}}
		errs := []error{nil, nil, nil, errors.New("sync failed"), nil}
		i := 0
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			time.Sleep(time.Second)
			if call == "sync" {
				i++
				return results[i-1], errs[i-1]
			}
			return runtime.SyncResult{}, nil
		}
		var callbacks []string
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Observer = observer{
				started: func(types.UID) { callbacks = append(callbacks, "started") },
				ended: func(_ types.UID, changed bool) {
					callbacks = append(callbacks, map[bool]string{true: "changed", false: "unchanged"}[changed])
				},
			}
		})
		w.Update(create(newTestPod("a")))
		for range 4 {
			time.Sleep(1500 * time.Millisecond)
			w.Requeue("a", podworkers.RequeueNow)
		}
		time.Sleep(1500 * time.Millisecond)
		w.RequestKill("a", podworkers.KillOptions{})
		time.Sleep(time.Minute)
		synctest.Wait()
		var newerThan []string
		for _, at := range f.newerThan["a"] {
			if at.IsZero() {
				newerThan = append(newerThan, "any")
			} else {
				newerThan = append(newerThan, at.Sub(f.startTime).String())
			}
		}
		assert.Equal(t, []string{"any", "1s", "1s", "1s", "5.5s", "5.5s"}, newerThan)
		assert.Equal(t, []string{
			"started", "changed", "started", "unchanged", "started", "unchanged", "started", "changed", "started", "unchanged",
			"started", "started", "unchanged",
		}, callbacks, "the end of consecutive calls is reported once")
	})
}

// PW-15: a panic of the Syncer is the error of that call.
func TestWorkers_RecoversSyncerPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		left := 2
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if left--; left >= 0 {
				panic("boom in " + call)
			}
			return runtime.SyncResult{}, nil
		}
		var values []any
		var errs []error
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Hooks.SyncPanicked = func(_ podworkers.SyncCall, v any) { values = append(values, v) }
			c.Hooks.SyncEnded = func(_ context.Context, _ podworkers.SyncCall, _ time.Duration, _ runtime.SyncResult, err error) {
				errs = append(errs, err)
			}
		})
		w.Update(create(newTestPod("a")))
		time.Sleep(5 * time.Second)
		w.RequestKill("a", podworkers.KillOptions{})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a", "5s terminate a grace=30s", "15s terminate a grace=30s", "15s finish a grace=30s"}, f.take())
		assert.Equal(t, []any{"boom in sync", "boom in terminate"}, values)
		assert.ErrorIs(t, errs[0], podworkers.ErrSyncerPanicked)
		assert.ErrorContains(t, errs[0], "boom in sync")
	})
}

// SL-5: when a pod is due without a request.
func TestWorkers_RequeueTimes(t *testing.T) {
	for _, tt := range []struct {
		name string
		out  runtime.SyncResult
		err  error
		want time.Duration
	}{
		{"resync", runtime.SyncResult{}, nil, time.Minute},
		{"RequeueAt before the resync", runtime.SyncResult{RequeueAt: time.Unix(946684805, 0)}, nil, 5 * time.Second},
		{"RequeueAt after the resync", runtime.SyncResult{RequeueAt: time.Unix(946684800+3600, 0)}, nil, time.Minute},
		{"RequeueAt in the past is delayed", runtime.SyncResult{RequeueAt: time.Unix(1, 0)}, nil, 10 * time.Millisecond},
		{"back-off", runtime.SyncResult{}, errors.New("sync failed"), 10 * time.Second},
		{"RequeueAt before the end of the back-off", runtime.SyncResult{RequeueAt: time.Unix(946684805, 0)}, errors.New("sync failed"), 5 * time.Second},
		{"short back-off if not ready", runtime.SyncResult{}, runtime.ErrNotReady, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSyncer{do: func(context.Context, string, types.UID) (runtime.SyncResult, error) { return tt.out, tt.err }}
				w := runWorkers(t, f)
				w.Update(create(newTestPod("a")))
				synctest.Wait()
				assert.Len(t, f.take(), 1)
				st, _ := w.State("a")
				assert.InDelta(t, tt.want, st.RequeueAt.Sub(f.startTime), float64(time.Microsecond))
				time.Sleep(time.Until(st.RequeueAt) - 1)
				synctest.Wait()
				assert.Empty(t, f.take(), "too early")
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				assert.Len(t, f.take(), 1)
			})
		})
	}
}

// SL-5: jitter only lengthens the resync period, and resyncs of one second run together.
func TestWorkers_Jitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		delays := map[time.Duration]bool{}
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Jitter = 0.5
		})
		for range 200 {
			w.Update(podworkers.Update{Pod: newTestPod("a")})
			synctest.Wait()
			st, _ := w.State("a")
			d := time.Until(st.RequeueAt)
			assert.GreaterOrEqual(t, d, time.Minute)
			assert.LessOrEqual(t, d, 90*time.Second)
			assert.Zero(t, st.RequeueAt.Nanosecond(), "resyncs are aligned to seconds")
			delays[d.Truncate(time.Second)] = true
			time.Sleep(37 * time.Second)
		}
		assert.Greater(t, len(delays), 20)
	})
}

// SL-5: a failing call that changes the pod in the runtime does not cause the next
// call without delay.
func TestWorkers_DefersEventsAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		var w *podworkers.Workers
		f.do = func(_ context.Context, _ string, uid types.UID) (runtime.SyncResult, error) {
			return runtime.SyncResult{}, errors.New("sync failed")
		}
		w = runWorkers(t, f, func(c *podworkers.Config) {
			c.Observer = observer{ended: func(uid types.UID, _ bool) { w.Requeue(uid, podworkers.RequeueEvent) }}
		})
		w.Update(create(newTestPod("a")))
		time.Sleep(3 * time.Second)
		assert.Equal(t, []string{
			"0s sync a", "0s sync a", "100ms sync a", "300ms sync a", "700ms sync a", "1.5s sync a", "2.5s sync a",
		}, f.take(), "the first event after a failure is not deferred")

		w.Update(podworkers.Update{Type: podworkers.PodReconcile, Pod: newTestPod("a")})
		synctest.Wait()
		assert.Empty(t, f.take(), "PodReconcile is deferred as well")
		w.Update(podworkers.Update{Pod: newTestPod("a", version("2"))})
		synctest.Wait()
		assert.Equal(t, []string{"3s sync a v2"}, f.take(), "PodUpdate is not deferred")
	})
}

// SL-7: Drain terminates all pods and names those that have not finished.
func TestWorkers_Drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		attempts := map[types.UID]int{}
		f.do = func(ctx context.Context, call string, uid types.UID) (runtime.SyncResult, error) {
			switch {
			case call == "terminate" && uid == "hung":
				return runtime.SyncResult{}, untilCancelled(ctx)
			case call == "terminate" && uid == "flaky":
				if attempts[uid]++; attempts[uid] < 3 {
					return runtime.SyncResult{}, errors.New("sync failed")
				}
			}
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		w.PauseRequeues(true) // by a loop that has stopped
		require.NoError(t, w.Drain(t.Context(), podworkers.KillOptions{}), "no pods")
		w.PauseRequeues(true)
		for _, uid := range []string{"a", "flaky", "hung", "done"} {
			w.Update(create(newTestPod(uid)))
		}
		require.NoError(t, w.Kill(t.Context(), "done", podworkers.KillOptions{WaitUntilFinished: true}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.Drain(ctx, podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: 5 * time.Second, Reason: "Terminated"}})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "hung")
		assert.NotContains(t, err.Error(), "flaky")
		assert.True(t, w.IsFinished("a"))
		assert.True(t, w.IsFinished("flaky"))
	})
}

// SL-7: Drain waits until the resources of pods are released, and its retries cannot be
// paused.
func TestWorkers_DrainRetriesUntilFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		left := 2
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "finish" {
				if left--; left >= 0 {
					return runtime.SyncResult{}, errors.New("device busy")
				}
			}
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		time.AfterFunc(time.Second, func() { w.PauseRequeues(true) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, w.Drain(ctx, podworkers.KillOptions{}))
		assert.Equal(t, 20*time.Second, time.Since(f.startTime).Round(time.Second))
		assert.True(t, w.IsFinished("a"))
	})
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := podworkers.New(podworkers.Config{ResyncPeriod: -1, BackOff: -1, Jitter: -1})
	for _, text := range []string{
		"Config.Syncer: required", "Config.Inspector: required", "Config.ResyncPeriod: must not be negative",
		"Config.BackOff: must not be negative", "Config.Jitter: must not be negative",
	} {
		assert.ErrorContains(t, err, "podworkers: "+text)
	}
}

// Updates before Run are handled when it starts.
func TestWorkers_UpdateBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{startTime: time.Now()}
		w, err := podworkers.New(podworkers.Config{Syncer: f, Inspector: f})
		require.NoError(t, err)
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		assert.Empty(t, f.take())
		ctx, cancel := context.WithCancel(t.Context())
		go func() { assert.NoError(t, w.Run(ctx)) }()
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a"}, f.take())
		cancel()
	})
}

// PW-11: the pod object of an orphan has its source.
func TestWorkers_OrphanHasSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got *corev1.Pod
		f := &fakeSyncer{}
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Hooks.SyncStarted = func(ctx context.Context, call podworkers.SyncCall) context.Context { got = call.Pod; return ctx }
		})
		w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "o", Sandboxes: []runtime.Sandbox{{}, {Source: "file"}}}})
		synctest.Wait()
		require.NotNil(t, got)
		assert.True(t, podspec.IsStatic(got))
		assert.Empty(t, got.Spec.Containers)

		w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "p", Sandboxes: []runtime.Sandbox{
			{Source: "cloud", Annotations: map[string]string{podspec.AnnotationStatic: "false"}},
		}}})
		synctest.Wait()
		assert.EqualValues(t, "p", got.UID)
		assert.False(t, podspec.IsStatic(got), "the sandbox has the annotation of a pod that is not static")

		object := newTestPod("q")
		object.Annotations = map[string]string{podspec.AnnotationSource: "cloud", podspec.AnnotationStatic: "false", "other": "x"}
		object.Spec.TerminationGracePeriodSeconds = new(int64(7))
		w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "q", Object: object}})
		synctest.Wait()
		delete(object.Annotations, "other")
		assert.EqualValues(t, "q", got.UID)
		assert.Equal(t, object.Annotations, got.Annotations, "of an object")
		assert.Contains(t, strings.Join(f.take(), " "), "grace=7s")
	})
}

// AG-9, PW-15: a panic in a callback affects neither the pod nor later callbacks.
func TestWorkers_RecoversPanicsOfCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		var mu sync.Mutex
		calls := map[string]int{}
		panicIn := func(what string) {
			mu.Lock()
			calls[what]++
			mu.Unlock()
			panic(what)
		}
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Observer = observer{
				started: func(types.UID) { panicIn("sync started") },
				ended:   func(types.UID, bool) { panicIn("sync ended") },
			}
			c.Hooks = podworkers.Hooks{
				PhaseChanged: func(types.UID, podworkers.Phase, podworkers.Phase, podworkers.Cause) { panicIn("phase changed") },
				PodFinished:  func(types.UID) { panicIn("finished") },
				SyncStarted:  func(context.Context, podworkers.SyncCall) context.Context { panicIn("started"); return nil },
				SyncEnded:    func(context.Context, podworkers.SyncCall, time.Duration, runtime.SyncResult, error) { panicIn("ended") },
			}
		})
		f.isRunning = func(types.UID) bool { panicIn("is running"); return false }
		w.Update(create(newTestPod("b", phase(corev1.PodFailed))))
		synctest.Wait()
		assert.Equal(t, []string{"0s terminate b grace=30s", "0s finish b grace=30s"}, f.take(), "it may be running")
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		w.RequestKill("a", podworkers.KillOptions{Done: func(error) { panicIn("done") }})
		assert.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{WaitUntilFinished: true}))
		w.RequestKill("unknown", podworkers.KillOptions{Done: func(error) { panicIn("done") }})
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a", "0s terminate a grace=30s", "0s finish a grace=30s"}, f.take())
		for _, what := range []string{"sync started", "sync ended", "is running", "finished", "phase changed", "started", "ended", "done"} {
			assert.NotZero(t, calls[what], what)
		}
		assert.Equal(t, 2, calls["done"])
	})
}

// Callbacks are called without holding a lock, so they may call Workers, and they
// are called in order.
func TestWorkers_CallbacksMayCallTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		var w *podworkers.Workers
		var callbacks []string
		w = runWorkers(t, f, func(c *podworkers.Config) {
			c.Observer = observer{
				started: func(uid types.UID) {
					if st, _ := w.State(uid); st.Working && st.Phase == podworkers.Syncing {
						callbacks = append(callbacks, "sync started")
					}
				},
				ended: func(uid types.UID, _ bool) {
					if st, _ := w.State(uid); !st.Working && st.Phase == podworkers.Syncing {
						callbacks = append(callbacks, "sync ended")
					}
				},
			}
			c.Hooks.PhaseChanged = func(uid types.UID, _, to podworkers.Phase, _ podworkers.Cause) {
				callbacks = append(callbacks, to.String())
				if to == podworkers.Terminating {
					w.RequestKill(uid, podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}, Done: func(error) { callbacks = append(callbacks, "killed") }})
				}
			}
			c.Hooks.PodFinished = func(uid types.UID) {
				callbacks = append(callbacks, "finished")
				w.ForgetFinished(uid, false)
			}
		})
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		w.RequestKill("a", podworkers.KillOptions{})
		synctest.Wait()
		assert.Equal(t, []string{"sync started", "sync ended", "Terminating", "Terminated", "killed", "Finished", "finished"}, callbacks)
		assert.False(t, w.IsKnown("a"))
	})
}
