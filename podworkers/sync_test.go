package podworkers_test

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
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// PW-14: each turn sees the pod as it was after the last one that may have changed
// the runtime. One that failed may have, whatever it says.
func TestWorkers_SyncSeesStateNewerThanLastSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		outcomes := []runtime.SyncResult{{}, {Unchanged: true}, {Unchanged: true}, {Unchanged: true}, {Unchanged: true}}
		errs := []error{nil, nil, nil, errors.New("no luck"), nil}
		i := 0
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			time.Sleep(time.Second)
			if call == "sync" {
				i++
				return outcomes[i-1], errs[i-1]
			}
			return runtime.SyncResult{}, nil
		}
		var asked []string
		w := run(t, f, func(c *podworkers.Config) {
			c.RequestInspection = func(types.UID) { asked = append(asked, "inspect") }
			c.OnIdle = func(types.UID) { asked = append(asked, "ended") }
		})
		w.Update(create(pod("a")))
		for range 4 {
			time.Sleep(1500 * time.Millisecond)
			w.Requeue("a", podworkers.RequeueNow)
		}
		time.Sleep(1500 * time.Millisecond)
		w.RequestKill("a", podworkers.KillOptions{})
		time.Sleep(time.Minute)
		synctest.Wait()
		var since []string
		for _, at := range f.since["a"] {
			if at.IsZero() {
				since = append(since, "any")
			} else {
				since = append(since, at.Sub(f.began).String())
			}
		}
		assert.Equal(t, []string{"any", "1s", "1s", "1s", "5.5s", "5.5s"}, since)
		assert.Equal(t, []string{
			"inspect", "ended", "ended", "ended", "inspect", "ended", "ended", "ended",
		}, asked, "after a turn that may have changed the runtime, and not between turns that follow one another")
	})
}

// PW-15: a panic is that turn's error.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		left := 2
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if left--; left >= 0 {
				panic("boom in " + call)
			}
			return runtime.SyncResult{}, nil
		}
		var values []any
		var errs []error
		w := run(t, f, func(c *podworkers.Config) {
			c.Hooks.SyncPanicked = func(_ podworkers.SyncCall, v any) { values = append(values, v) }
			c.Hooks.SyncEnded = func(_ podworkers.SyncCall, _ time.Duration, _ runtime.SyncResult, err error) {
				errs = append(errs, err)
			}
		})
		w.Update(create(pod("a")))
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

// SL-5: when a pod is looked at without being asked for.
func TestDueTimes(t *testing.T) {
	for _, tt := range []struct {
		name string
		out  runtime.SyncResult
		err  error
		want time.Duration
	}{
		{"resync", runtime.SyncResult{}, nil, time.Minute},
		{"before it, as told", runtime.SyncResult{RequeueAt: time.Unix(946684805, 0)}, nil, 5 * time.Second},
		{"not after it", runtime.SyncResult{RequeueAt: time.Unix(946684800+3600, 0)}, nil, time.Minute},
		{"never without a pause", runtime.SyncResult{RequeueAt: time.Unix(1, 0)}, nil, 10 * time.Millisecond},
		{"back-off", runtime.SyncResult{}, errors.New("no luck"), 10 * time.Second},
		{"sooner than that, as told", runtime.SyncResult{RequeueAt: time.Unix(946684805, 0)}, errors.New("no luck"), 5 * time.Second},
		{"what soon passes", runtime.SyncResult{}, runtime.ErrNotReady, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{do: func(context.Context, string, types.UID) (runtime.SyncResult, error) { return tt.out, tt.err }}
				var dues []time.Time
				w := run(t, f, func(c *podworkers.Config) {
					c.OnRequeue = func(_ types.UID, at time.Time) { dues = append(dues, at) }
				})
				w.Update(create(pod("a")))
				synctest.Wait()
				require.Len(t, dues, 1)
				assert.InDelta(t, tt.want, dues[0].Sub(f.began), float64(time.Microsecond))
				f.take()
				w.Requeue("a", podworkers.RequeueDue)
				synctest.Wait()
				assert.Empty(t, f.take(), "too early")
				time.Sleep(dues[0].Sub(f.began))
				w.Requeue("a", podworkers.RequeueDue)
				synctest.Wait()
				assert.Len(t, f.take(), 1)
			})
		})
	}
}

func TestJitterLengthens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		seen := map[time.Duration]bool{}
		w := run(t, f, func(c *podworkers.Config) {
			c.Jitter = 0.5
			c.OnRequeue = func(_ types.UID, at time.Time) {
				d := time.Until(at)
				assert.GreaterOrEqual(t, d, time.Minute)
				assert.LessOrEqual(t, d, 90*time.Second)
				seen[d] = true
			}
		})
		for range 200 {
			w.Update(podworkers.Update{Pod: pod("a")})
			synctest.Wait()
		}
		assert.Greater(t, len(seen), 20)
		assert.LessOrEqual(t, len(seen), 31, "they come once a second, so that they come together")
	})
}

// A Syncer whose failing turns change the runtime must not keep itself going.
func TestEventsAfterFailuresAreHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var w *podworkers.Workers
		f.do = func(_ context.Context, _ string, uid types.UID) (runtime.SyncResult, error) {
			return runtime.SyncResult{}, errors.New("no luck")
		}
		w = run(t, f, func(c *podworkers.Config) {
			c.RequestInspection = func(uid types.UID) { w.Requeue(uid, podworkers.RequeueEvent) }
		})
		w.Update(create(pod("a")))
		time.Sleep(3 * time.Second)
		assert.Equal(t, []string{
			"0s sync a", "0s sync a", "100ms sync a", "300ms sync a", "700ms sync a", "1.5s sync a", "2.5s sync a",
		}, f.take(), "the first change after a failure counts at once")

		w.Update(podworkers.Update{Type: podworkers.PodReconcile, Pod: pod("a")})
		synctest.Wait()
		assert.Empty(t, f.take(), "a status that was told is such a change")
		w.Update(podworkers.Update{Pod: pod("a", version("2"))})
		synctest.Wait()
		assert.Equal(t, []string{"3s sync a v2"}, f.take(), "a pod that was changed is none")
	})
}

// SL-7: an agent that drains ends all pods, and tells which it could not.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		tries := map[types.UID]int{}
		f.do = func(ctx context.Context, call string, uid types.UID) (runtime.SyncResult, error) {
			switch {
			case call == "terminate" && uid == "stuck":
				return runtime.SyncResult{}, untilCancelled(ctx)
			case call == "terminate" && uid == "flaky":
				if tries[uid]++; tries[uid] < 3 {
					return runtime.SyncResult{}, errors.New("no luck")
				}
			}
			return runtime.SyncResult{}, nil
		}
		w := run(t, f, func(c *podworkers.Config) {
			c.OnRequeue = func(types.UID, time.Time) {} // the loop has ended before
		})
		require.NoError(t, w.Drain(t.Context(), podworkers.KillOptions{}), "nothing to do")
		for _, uid := range []string{"a", "flaky", "stuck", "done"} {
			w.Update(create(pod(uid)))
		}
		require.NoError(t, w.Kill(t.Context(), "done", podworkers.KillOptions{WaitUntilFinished: true}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.Drain(ctx, podworkers.KillOptions{GracePeriod: 5 * time.Second, Reason: "Terminated"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "stuck")
		assert.NotContains(t, err.Error(), "flaky")
		assert.True(t, w.IsFinished("a"))
		assert.True(t, w.IsFinished("flaky"))
	})
}

func TestConfigFaultsAreToldTogether(t *testing.T) {
	_, err := podworkers.New(podworkers.Config{ResyncPeriod: -1, BackOff: -1, Jitter: -1})
	for _, what := range []string{"nil Syncer", "nil Seen", "negative Resync", "negative BackOff", "negative Jitter"} {
		assert.ErrorContains(t, err, what)
	}
}

// What was asked for before Run is done when it runs.
func TestUpdateBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{began: time.Now()}
		w, err := podworkers.New(podworkers.Config{Syncer: f, Inspector: f})
		require.NoError(t, err)
		w.Update(create(pod("a")))
		synctest.Wait()
		assert.Empty(t, f.take())
		ctx, cancel := context.WithCancel(t.Context())
		go func() { assert.NoError(t, w.Run(ctx)) }()
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a"}, f.take())
		cancel()
	})
}

func TestSourceOfOrphanIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got *corev1.Pod
		f := &fake{}
		w := run(t, f, func(c *podworkers.Config) {
			c.Hooks.SyncStarted = func(turn podworkers.SyncCall) { got = turn.Pod }
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
		assert.False(t, podspec.IsStatic(got), "its source said so when it was made")
	})
}

// AG-9, PW-15: a panic of whoever is told of a pod is nobody else's, and what is
// told after it is told.
func TestWorkers_PanicsOfCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var mu sync.Mutex
		calls := map[string]int{}
		boom := func(what string) {
			mu.Lock()
			calls[what]++
			mu.Unlock()
			panic(what)
		}
		w := run(t, f, func(c *podworkers.Config) {
			c.OnRequeue = func(types.UID, time.Time) { boom("due") }
			c.RequestInspection = func(types.UID) { boom("inspect") }
			c.OnIdle = func(types.UID) { boom("turn ended") }
			c.OnFinished = func(types.UID) { boom("finished") }
			c.Hooks = podworkers.Hooks{
				PhaseChanged: func(types.UID, podworkers.Phase, podworkers.Phase, podworkers.Cause) { boom("moved") },
				SyncStarted:  func(podworkers.SyncCall) { boom("started") },
				SyncEnded:    func(podworkers.SyncCall, time.Duration, runtime.SyncResult, error) { boom("ended") },
			}
		})
		w.Update(create(pod("a")))
		synctest.Wait()
		w.RequestKill("a", podworkers.KillOptions{Done: func(error) { boom("done") }})
		assert.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{WaitUntilFinished: true}))
		w.RequestKill("unknown", podworkers.KillOptions{Done: func(error) { boom("done") }})
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a", "0s terminate a grace=30s", "0s finish a grace=30s"}, f.take())
		for _, what := range []string{"due", "inspect", "turn ended", "finished", "moved", "started", "ended", "done"} {
			assert.NotZero(t, calls[what], what)
		}
		assert.Equal(t, 2, calls["done"])
	})
}

// Nobody is called under a lock: whoever is told may ask, and act, at once. What is
// told comes in order.
func TestWorkers_CallbacksMayCallTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var w *podworkers.Workers
		var told []string
		w = run(t, f, func(c *podworkers.Config) {
			c.OnRequeue = func(uid types.UID, at time.Time) {
				st, _ := w.State(uid)
				if st.RequeueAt.Equal(at) && !at.IsZero() {
					told = append(told, "due")
				}
			}
			c.Hooks.PhaseChanged = func(uid types.UID, _, to podworkers.Phase, _ podworkers.Cause) {
				told = append(told, to.String())
				if to == podworkers.Terminating {
					w.RequestKill(uid, podworkers.KillOptions{Deleted: true, Done: func(error) { told = append(told, "killed") }})
				}
			}
			c.OnFinished = func(uid types.UID) {
				told = append(told, "finished")
				w.ForgetFinished(uid, false)
			}
		})
		w.Update(create(pod("a")))
		synctest.Wait()
		w.RequestKill("a", podworkers.KillOptions{})
		synctest.Wait()
		assert.Equal(t, []string{"due", "Terminating", "Terminated", "killed", "Finished", "finished"}, told)
		assert.False(t, w.IsKnown("a"))
	})
}
