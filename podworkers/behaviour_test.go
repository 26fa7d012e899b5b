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

func create(p *corev1.Pod) podworkers.Update {
	return podworkers.Update{Op: podworkers.Create, Pod: p}
}

// slow makes syncs of a pod last until they are cancelled, or for a while.
func slow(d time.Duration) func(context.Context, string, types.UID) (runtime.Outcome, error) {
	return func(ctx context.Context, call string, _ types.UID) (runtime.Outcome, error) {
		if call != "sync" {
			return runtime.Outcome{}, nil
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return runtime.Outcome{Quiet: true}, nil
		case <-ctx.Done():
			return runtime.Outcome{}, context.Cause(ctx)
		}
	}
}

// What begins the end of a pod, and what the Syncer is told of it.
func TestEndings(t *testing.T) {
	kill := func(k podworkers.Kill) func(*podworkers.Workers) {
		return func(w *podworkers.Workers) { w.End("a", k) }
	}
	update := func(change ...func(*corev1.Pod)) func(*podworkers.Workers) {
		return func(w *podworkers.Workers) { w.Update(podworkers.Update{Pod: pod("a", change...)}) }
	}
	for _, tt := range []struct {
		name  string
		spec  int64
		do    []func(*podworkers.Workers)
		want  string
		cause podworkers.Cause
	}{
		{"deletion timestamp", 30, []func(*podworkers.Workers){update(deleted(20))}, "grace=20s", podworkers.Deletion}, // PW-4
		{"succeeded", 30, []func(*podworkers.Workers){update(phase(corev1.PodSucceeded))}, "grace=30s", podworkers.Completed},
		{"failed", 30, []func(*podworkers.Workers){update(phase(corev1.PodFailed))}, "grace=30s", podworkers.Completed},
		{"killed", 30, []func(*podworkers.Workers){kill(podworkers.Kill{})}, "grace=30s", podworkers.Killed},
		{"evicted", 30, []func(*podworkers.Workers){kill(podworkers.Kill{Evicted: true, Reason: "Evicted", Grace: time.Second})}, "grace=1s Evicted evicted", podworkers.Evicted},
		{"removed", 30, []func(*podworkers.Workers){kill(podworkers.Kill{Deleted: true})}, "grace=30s deleted", podworkers.Removed},

		{"own grace of zero is one second", 0, []func(*podworkers.Workers){kill(podworkers.Kill{})}, "grace=1s", podworkers.Killed}, // PW-5
		{"deletion's grace of zero too", 30, []func(*podworkers.Workers){update(deleted(0))}, "grace=1s", podworkers.Deletion},
		{"the API server may have given more", 30, []func(*podworkers.Workers){update(deleted(90))}, "grace=1m30s", podworkers.Deletion},
		{"a kill cannot lengthen", 30, []func(*podworkers.Workers){kill(podworkers.Kill{Grace: time.Minute})}, "grace=30s", podworkers.Killed},
		{"a kill's grace is in whole seconds", 30, []func(*podworkers.Workers){kill(podworkers.Kill{Grace: 2900 * time.Millisecond})}, "grace=2s", podworkers.Killed},
		{"and one at least", 30, []func(*podworkers.Workers){kill(podworkers.Kill{Grace: time.Millisecond})}, "grace=1s", podworkers.Killed},
		{"a negative one says nothing", 30, []func(*podworkers.Workers){kill(podworkers.Kill{Grace: -time.Second})}, "grace=30s", podworkers.Killed},
		{"force is zero", 30, []func(*podworkers.Workers){kill(podworkers.Kill{Force: true, Grace: time.Minute})}, "grace=0s", podworkers.Killed},
		{"force with a grace of zero", 0, []func(*podworkers.Workers){kill(podworkers.Kill{Force: true})}, "grace=0s", podworkers.Killed},
		{"shrinks", 30, []func(*podworkers.Workers){kill(podworkers.Kill{Grace: 20 * time.Second}), update(deleted(10)), kill(podworkers.Kill{Grace: 15 * time.Second})}, "grace=10s", podworkers.Killed},
		{"the first reason stays", 30, []func(*podworkers.Workers){
			kill(podworkers.Kill{Deleted: true}), kill(podworkers.Kill{Reason: "Preempting"}),
			kill(podworkers.Kill{Reason: "Evicted", Evicted: true}),
		}, "grace=30s Preempting evicted deleted", podworkers.Removed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				// Everything is asked for while a sync is under way that does not heed its
				// context, so that the first termination sees all of it.
				f.do = func(_ context.Context, call string, _ types.UID) (runtime.Outcome, error) {
					if call == "sync" {
						time.Sleep(time.Second)
					}
					return runtime.Outcome{}, nil
				}
				w := run(t, f)
				w.Update(create(pod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &tt.spec })))
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

// PW-4: all containers done for good, as the Syncer tells.
func TestCompletedPodEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{do: func(context.Context, string, types.UID) (runtime.Outcome, error) {
			return runtime.Outcome{Terminal: true}, nil
		}}
		w := run(t, f)
		w.Update(create(pod("a")))
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a", "0s terminate a grace=30s", "0s finish a grace=30s"}, f.take())
		assert.True(t, w.Finished("a"))

		// What it left may go when it is deleted, by one more Finish.
		w.End("a", podworkers.Kill{Deleted: true})
		synctest.Wait()
		assert.Equal(t, []string{"0s finish a grace=30s deleted"}, f.take())
		w.End("a", podworkers.Kill{Deleted: true})
		synctest.Wait()
		assert.Empty(t, f.take())
	})
}

// PW-6: the start of the end and each shorter grace cancel what is under way; a
// longer grace does not.
func TestCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var causes []error
		f.do = func(ctx context.Context, call string, _ types.UID) (runtime.Outcome, error) {
			if call == "finish" {
				return runtime.Outcome{}, nil
			}
			err := untilCancelled(ctx)
			causes = append(causes, err)
			return runtime.Outcome{}, err
		}
		w := run(t, f)
		w.Update(create(pod("a")))
		for _, k := range []podworkers.Kill{
			{}, {Grace: 20 * time.Second}, {Grace: 25 * time.Second}, {Grace: time.Second}, {Force: true}, {Force: true}, {},
		} {
			synctest.Wait()
			w.End("a", k)
		}
		synctest.Wait()
		assert.Equal(t, []string{
			"0s sync a", "0s terminate a grace=30s", "0s terminate a grace=20s", "0s terminate a grace=1s", "0s terminate a grace=0s",
		}, f.take())
		for i, err := range causes {
			want := podworkers.ErrShorterGrace
			if i == 0 {
				want = podworkers.ErrEnding
			}
			assert.ErrorIs(t, err, want, i)
		}
	})
}

// PW-2, PW-3: one call at a time; what comes meanwhile is one more turn, with the
// newest pod and the oldest time.
func TestUpdatesMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{do: slow(time.Second)}
		var asked []time.Duration
		w := run(t, f, func(c *podworkers.Config) {
			c.Hooks.Started = func(turn podworkers.Turn) { asked = append(asked, turn.Asked.Sub(f.began)) }
		})
		w.Update(create(pod("a", version("1"))))
		synctest.Wait()
		for i, v := range []string{"2", "3", "4"} {
			time.Sleep(100 * time.Millisecond)
			at := time.Now()
			if i == 1 {
				at = f.began.Add(50 * time.Millisecond)
			}
			w.Update(podworkers.Update{Pod: pod("a", version(v)), At: at})
		}
		time.Sleep(5 * time.Second)
		assert.Equal(t, []string{"0s sync a v1", "1s sync a v4"}, f.take())
		assert.Equal(t, []time.Duration{0, 50 * time.Millisecond}, asked)
	})
}

// PW-2: a hung pod holds up nobody.
func TestPodsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.do = func(ctx context.Context, _ string, uid types.UID) (runtime.Outcome, error) {
			if uid == "hung" {
				return runtime.Outcome{}, untilCancelled(ctx)
			}
			return runtime.Outcome{}, nil
		}
		w := run(t, f)
		w.Update(create(pod("hung")))
		w.Update(create(pod("a")))
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.Kill{Reclaimed: true}))
		assert.Zero(t, time.Since(f.began))
	})
}

// PW-7: every waiter is told once, at the time that it asked for.
func TestWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.Outcome, error) {
			time.Sleep(map[string]time.Duration{"terminate": 2 * time.Second, "finish": 3 * time.Second}[call])
			return runtime.Outcome{}, nil
		}
		w := run(t, f)
		w.Update(create(pod("a")))
		synctest.Wait()
		var mu sync.Mutex
		told := map[string][]time.Duration{}
		wait := func(name string, uid types.UID, k podworkers.Kill, want error) {
			k.Done = func(err error) {
				mu.Lock()
				defer mu.Unlock()
				assert.ErrorIs(t, err, want, name)
				told[name] = append(told[name], time.Since(f.began))
			}
			w.End(uid, k)
		}
		wait("first", "a", podworkers.Kill{}, nil)
		wait("second", "a", podworkers.Kill{}, nil)
		wait("reclaimed", "a", podworkers.Kill{Reclaimed: true}, nil)
		wait("unknown", "b", podworkers.Kill{}, runtime.ErrNotFound)
		time.Sleep(4 * time.Second)
		wait("terminated", "a", podworkers.Kill{}, nil)
		time.Sleep(4 * time.Second)
		wait("finished", "a", podworkers.Kill{Reclaimed: true}, nil)
		w.SyncKnown(nil, true)
		wait("forgotten", "a", podworkers.Kill{}, nil)
		synctest.Wait()
		assert.Equal(t, map[string][]time.Duration{
			"first": {2 * time.Second}, "second": {2 * time.Second}, "reclaimed": {5 * time.Second}, "unknown": {0},
			"terminated": {4 * time.Second}, "finished": {8 * time.Second}, "forgotten": {8 * time.Second},
		}, told)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.Update(create(pod("c")))
		assert.ErrorIs(t, w.Kill(ctx, "c", podworkers.Kill{}), context.DeadlineExceeded)
	})
}

// PW-7, SL-7: who waits when the workers stop is told so, and no pod is ended.
func TestStopTellsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.do = func(ctx context.Context, _ string, _ types.UID) (runtime.Outcome, error) {
			return runtime.Outcome{}, untilCancelled(ctx)
		}
		w, err := podworkers.New(podworkers.Config{Syncer: f, Seen: f})
		require.NoError(t, err)
		f.began = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- w.Run(ctx) }()
		w.Update(create(pod("ending")))
		w.Update(create(pod("syncing")))
		synctest.Wait()
		var told []error
		w.End("ending", podworkers.Kill{Done: func(err error) { told = append(told, err) }})
		synctest.Wait()
		cancel()
		require.NoError(t, <-stopped)
		assert.Equal(t, []error{podworkers.ErrStopped}, told)
		f.take()
		assert.ErrorIs(t, w.Kill(t.Context(), "syncing", podworkers.Kill{}), podworkers.ErrStopped)
		w.Update(create(pod("late")))
		time.Sleep(time.Hour)
		assert.Empty(t, f.take(), "nothing is called after Run")
	})
}

// PW-9: static pods of one name live one after another, in the order in which they
// came; one that ends before its turn is never called for.
func TestStaticPodsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		w := run(t, f)
		for _, uid := range []string{"u1", "u2", "u3", "u4"} {
			w.Update(create(pod(uid, static("web"))))
			w.Update(create(pod("x"+uid, func(p *corev1.Pod) { p.Name = "web" })))
		}
		synctest.Wait()
		assert.Len(t, f.take(), 1+4, "the first static one, and the pods of an API server")
		st, _ := w.State("u3")
		assert.True(t, st.Queued)

		assert.NoError(t, w.Kill(t.Context(), "u2", podworkers.Kill{Deleted: true, Reclaimed: true}))
		assert.True(t, w.Finished("u2"))
		assert.False(t, w.CouldHaveRunningContainers("u2"))
		assert.Empty(t, f.take())

		assert.NoError(t, w.Kill(t.Context(), "u1", podworkers.Kill{Deleted: true, Reclaimed: true}))
		synctest.Wait()
		assert.Equal(t, []string{
			"0s terminate web grace=30s deleted", "0s finish web grace=30s deleted", "0s sync web",
		}, f.take())
		st, _ = w.State("u3")
		assert.False(t, st.Queued)
		st, _ = w.State("u4")
		assert.True(t, st.Queued)
	})
}

// PW-9, SR-3: a static pod waits for what a former agent left of its name.
func TestStaticPodWaitsForOrphanOfItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.do = func(context.Context, string, types.UID) (runtime.Outcome, error) {
			time.Sleep(time.Second)
			return runtime.Outcome{}, nil
		}
		w := run(t, f)
		w.Update(podworkers.Update{Orphan: &runtime.Pod{
			UID: "old", Namespace: "ns", Name: "web", Sandboxes: []runtime.Sandbox{{Source: "file", GracePeriod: 7 * time.Second}},
		}})
		w.Update(create(pod("new", static("web"))))
		time.Sleep(10 * time.Second)
		assert.Equal(t, []string{"0s terminate web grace=7s deleted", "1s sync web"}, f.take())
	})
}

// PW-10: a UID that comes back while it ends is created anew once it has ended.
func TestUIDComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		w := run(t, f)
		w.Update(create(pod("a", version("1"))))
		synctest.Wait()
		f.do = func(context.Context, string, types.UID) (runtime.Outcome, error) {
			time.Sleep(time.Second)
			return runtime.Outcome{}, nil
		}
		all := map[types.UID]struct{}{"a": {}}
		w.End("a", podworkers.Kill{Deleted: true})
		w.Update(create(pod("a", version("2"))))
		assert.Empty(t, w.SyncKnown(all, true), "not before it has finished")
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"0s sync a v1", "0s terminate a grace=30s deleted", "1s finish a grace=30s deleted"}, f.take())
		assert.Equal(t, []types.UID{"a"}, w.SyncKnown(all, true))
		assert.Empty(t, w.SyncKnown(all, true), "once")
		assert.False(t, w.Known("a"))

		f.since = nil
		w.Update(create(pod("a", version("2"))))
		synctest.Wait()
		assert.Equal(t, []string{"1m0s sync a v2"}, f.take())
		assert.Equal(t, time.Minute, f.since["a"][0].Sub(f.began), "what is left of its former life is no view of it") // PW-14

		// Removed again before it could come back, it does not.
		w.End("a", podworkers.Kill{Deleted: true})
		assert.True(t, w.ComesBack("a"))
		w.End("a", podworkers.Kill{Deleted: true})
		time.Sleep(time.Minute)
		assert.Empty(t, w.SyncKnown(all, true))
		assert.False(t, w.Settle("a", false))
		assert.False(t, w.Known("a"))
	})
}

// PW-10: whoever wants it must have said so before it can be forgotten.
func TestUIDThatCameBackIsNotForgottenByAnOldSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t, &fake{})
		w.Update(create(pod("a")))
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.Kill{Deleted: true, Reclaimed: true}))
		require.True(t, w.ComesBack("a"))
		assert.Empty(t, w.SyncKnown(map[types.UID]struct{}{}, true), "a set from before it came back")
		assert.True(t, w.Settle("a", true))
	})
}

// PW-11: orphans are only terminated.
func TestOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		fails := 1
		f.do = func(context.Context, string, types.UID) (runtime.Outcome, error) {
			fails--
			if fails >= 0 {
				return runtime.Outcome{}, errors.New("no luck")
			}
			return runtime.Outcome{}, nil
		}
		w := run(t, f)
		seen := runtime.Pod{UID: "o", Namespace: "ns", Name: "left", Containers: []runtime.Container{{GracePeriod: 5 * time.Second}}}
		seen.ObservedAt = time.Now()
		w.Update(podworkers.Update{Orphan: &seen})
		w.Update(podworkers.Update{Orphan: &seen})
		synctest.Wait()
		st, _ := w.State("o")
		assert.True(t, st.Orphan)
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"0s terminate left grace=5s deleted", "10s terminate left grace=5s deleted"}, f.take())
		assert.False(t, w.Known("o"))

		w.Update(podworkers.Update{Orphan: &seen})
		synctest.Wait()
		assert.Empty(t, f.take(), "seen before it ended")
		seen.ObservedAt = time.Now()
		w.Update(podworkers.Update{Orphan: &seen, Kill: &podworkers.Kill{Grace: time.Second}})
		w.Update(create(pod("o")))
		synctest.Wait()
		assert.Equal(t, []string{"1m0s terminate left grace=1s deleted"}, f.take())
		assert.Equal(t, []types.UID{"o"}, w.SyncKnown(map[types.UID]struct{}{"o": {}}, true), "it was configured meanwhile") // PW-10

		w.Update(create(pod("known")))
		synctest.Wait()
		f.take()
		w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "known"}})
		synctest.Wait()
		assert.Empty(t, f.take(), "a pod that is configured is none")
	})
}

// PW-12: nobody is troubled about a pod that is done for good.
func TestTerminalAtFirstSight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		ended := map[types.UID]bool{"a": true, "c": true}
		w := run(t, f, func(c *podworkers.Config) { c.Ended = func(uid types.UID) bool { return ended[uid] } })
		w.Update(create(pod("a", phase(corev1.PodSucceeded))))
		synctest.Wait()
		assert.True(t, w.Finished("a"))
		assert.Empty(t, f.take())
		assert.NoError(t, w.Kill(t.Context(), "a", podworkers.Kill{}))
		assert.Empty(t, f.take())

		w.Update(create(pod("b", phase(corev1.PodFailed)))) // something of it is alive
		synctest.Wait()
		assert.Equal(t, []string{"0s terminate b grace=30s", "0s finish b grace=30s"}, f.take())

		w.Update(create(pod("c", phase(corev1.PodFailed), deleted(9)))) // and somebody waits to hear of it
		synctest.Wait()
		assert.Equal(t, []string{"0s finish c grace=9s"}, f.take())
	})
}

// PW-13: the questions of others, in each phase.
func TestQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		block := make(chan struct{})
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.Outcome, error) {
			if call != "sync" {
				<-block
			}
			return runtime.Outcome{}, nil
		}
		w := run(t, f)
		type answers struct{ known, finished, running, ending, remove, busy bool }
		check := func(when string, want answers) {
			t.Helper()
			synctest.Wait()
			assert.Equal(t, want, answers{
				w.Known("a"), w.Finished("a"), w.CouldHaveRunningContainers("a"),
				w.ShouldContainersBeTerminating("a"), w.MayRemoveContent("a"), w.Busy("a"),
			}, when)
		}
		check("unknown, before the first full sync", answers{running: true})
		w.SyncKnown(nil, false)
		check("unknown, after one that was not full", answers{running: true})
		w.SyncKnown(nil, true)
		check("unknown", answers{ending: true, remove: true})
		w.SyncKnown(nil, false)
		check("full once is full", answers{ending: true, remove: true})
		w.Update(create(pod("a")))
		check("syncing", answers{known: true, running: true})
		w.End("a", podworkers.Kill{Deleted: true})
		check("terminating", answers{known: true, running: true, ending: true, busy: true})
		block <- struct{}{}
		check("terminated", answers{known: true, ending: true, remove: true, busy: true})
		block <- struct{}{}
		check("finished", answers{known: true, finished: true, ending: true, remove: true})
	})
}

// PW-13: content of a pod that merely ended stays.
func TestContentOfCompletedPodStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t, &fake{})
		for uid, k := range map[string]podworkers.Kill{"killed": {}, "evicted": {Evicted: true}} {
			w.Update(create(pod(uid)))
			require.NoError(t, w.Kill(t.Context(), types.UID(uid), k))
		}
		assert.False(t, w.MayRemoveContent("killed"))
		assert.True(t, w.MayRemoveContent("evicted"))
	})
}

// PW-14: each turn sees the pod as it was after the last one that may have changed
// the runtime.
func TestFreshness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		outcomes := []runtime.Outcome{{}, {Quiet: true}, {Quiet: true}, {}, {Quiet: true}}
		errs := []error{nil, nil, nil, errors.New("no luck"), nil}
		i := 0
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.Outcome, error) {
			time.Sleep(time.Second)
			if call == "sync" {
				i++
				return outcomes[i-1], errs[i-1]
			}
			return runtime.Outcome{}, nil
		}
		var asked []string
		w := run(t, f, func(c *podworkers.Config) {
			c.Inspect = func(types.UID) { asked = append(asked, "inspect") }
			c.TurnEnded = func(types.UID) { asked = append(asked, "ended") }
		})
		w.Update(create(pod("a")))
		for range 4 {
			time.Sleep(1500 * time.Millisecond)
			w.Wake("a", podworkers.WakeNow)
		}
		time.Sleep(1500 * time.Millisecond)
		w.End("a", podworkers.Kill{})
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
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.Outcome, error) {
			if left--; left >= 0 {
				panic("boom in " + call)
			}
			return runtime.Outcome{}, nil
		}
		var values []any
		var errs []error
		w := run(t, f, func(c *podworkers.Config) {
			c.Hooks.Panicked = func(_ podworkers.Turn, v any) { values = append(values, v) }
			c.Hooks.Ended = func(_ podworkers.Turn, _ time.Duration, _ runtime.Outcome, err error) { errs = append(errs, err) }
		})
		w.Update(create(pod("a")))
		time.Sleep(5 * time.Second)
		w.End("a", podworkers.Kill{})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a", "5s terminate a grace=30s", "15s terminate a grace=30s", "15s finish a grace=30s"}, f.take())
		assert.Equal(t, []any{"boom in sync", "boom in terminate"}, values)
		assert.ErrorIs(t, errs[0], podworkers.ErrPanic)
		assert.ErrorContains(t, errs[0], "boom in sync")
	})
}

// SL-5: when a pod is looked at without being asked for.
func TestDueTimes(t *testing.T) {
	for _, tt := range []struct {
		name string
		out  runtime.Outcome
		err  error
		want time.Duration
	}{
		{"resync", runtime.Outcome{}, nil, time.Minute},
		{"before it, as told", runtime.Outcome{Due: time.Unix(946684805, 0)}, nil, 5 * time.Second},
		{"not after it", runtime.Outcome{Due: time.Unix(946684800+3600, 0)}, nil, time.Minute},
		{"never without a pause", runtime.Outcome{Due: time.Unix(1, 0)}, nil, 10 * time.Millisecond},
		{"back-off", runtime.Outcome{}, errors.New("no luck"), 10 * time.Second},
		{"sooner than that, as told", runtime.Outcome{Due: time.Unix(946684805, 0)}, errors.New("no luck"), 5 * time.Second},
		{"what soon passes", runtime.Outcome{}, runtime.ErrNotReady, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{do: func(context.Context, string, types.UID) (runtime.Outcome, error) { return tt.out, tt.err }}
				var dues []time.Time
				w := run(t, f, func(c *podworkers.Config) {
					c.Due = func(_ types.UID, at time.Time) { dues = append(dues, at) }
				})
				w.Update(create(pod("a")))
				synctest.Wait()
				require.Len(t, dues, 1)
				assert.InDelta(t, tt.want, dues[0].Sub(f.began), float64(time.Microsecond))
				f.take()
				w.Wake("a", podworkers.WakeDue)
				synctest.Wait()
				assert.Empty(t, f.take(), "too early")
				time.Sleep(dues[0].Sub(f.began))
				w.Wake("a", podworkers.WakeDue)
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
			c.Due = func(_ types.UID, at time.Time) {
				d := time.Until(at)
				assert.GreaterOrEqual(t, d, time.Minute)
				assert.LessOrEqual(t, d, 90*time.Second)
				seen[d] = true
			}
		})
		for range 20 {
			w.Update(podworkers.Update{Pod: pod("a")})
			synctest.Wait()
		}
		assert.Greater(t, len(seen), 15)
	})
}

// A Syncer whose failing turns change the runtime must not keep itself going.
func TestEventsAfterFailuresAreHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var w *podworkers.Workers
		f.do = func(_ context.Context, _ string, uid types.UID) (runtime.Outcome, error) {
			return runtime.Outcome{}, errors.New("no luck")
		}
		w = run(t, f, func(c *podworkers.Config) {
			c.Inspect = func(uid types.UID) { w.Wake(uid, podworkers.WakeEvent) }
		})
		w.Update(create(pod("a")))
		time.Sleep(3 * time.Second)
		assert.Equal(t, []string{
			"0s sync a", "0s sync a", "100ms sync a", "300ms sync a", "700ms sync a", "1.5s sync a", "2.5s sync a",
		}, f.take(), "the first change after a failure counts at once")

		w.Update(podworkers.Update{Op: podworkers.Reconcile, Pod: pod("a")})
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
		f.do = func(ctx context.Context, call string, uid types.UID) (runtime.Outcome, error) {
			switch {
			case call == "terminate" && uid == "stuck":
				return runtime.Outcome{}, untilCancelled(ctx)
			case call == "terminate" && uid == "flaky":
				if tries[uid]++; tries[uid] < 3 {
					return runtime.Outcome{}, errors.New("no luck")
				}
			}
			return runtime.Outcome{}, nil
		}
		w := run(t, f, func(c *podworkers.Config) {
			c.Due = func(types.UID, time.Time) {} // the loop has ended before
		})
		require.NoError(t, w.Drain(t.Context(), podworkers.Kill{}), "nothing to do")
		for _, uid := range []string{"a", "flaky", "stuck", "done"} {
			w.Update(create(pod(uid)))
		}
		require.NoError(t, w.Kill(t.Context(), "done", podworkers.Kill{Reclaimed: true}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.Drain(ctx, podworkers.Kill{Grace: 5 * time.Second, Reason: "Terminated"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "stuck")
		assert.NotContains(t, err.Error(), "flaky")
		assert.True(t, w.Finished("a"))
		assert.True(t, w.Finished("flaky"))
	})
}

func TestConfigFaultsAreToldTogether(t *testing.T) {
	_, err := podworkers.New(podworkers.Config{Resync: -1, BackOff: -1, Jitter: -1})
	for _, what := range []string{"nil Syncer", "nil Seen", "negative Resync", "negative BackOff", "negative Jitter"} {
		assert.ErrorContains(t, err, what)
	}
}

// What was asked for before Run is done when it runs.
func TestUpdateBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{began: time.Now()}
		w, err := podworkers.New(podworkers.Config{Syncer: f, Seen: f})
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
			c.Hooks.Started = func(turn podworkers.Turn) { got = turn.Pod }
		})
		w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "o", Sandboxes: []runtime.Sandbox{{}, {Source: "file"}}}})
		synctest.Wait()
		require.NotNil(t, got)
		assert.True(t, podspec.IsStatic(got))
		assert.Empty(t, got.Spec.Containers)
	})
}
