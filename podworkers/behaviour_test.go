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

// slow makes syncs of a pod last until they are cancelled, or for a while.
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

// What begins the end of a pod, and what the Syncer is told of it.
func TestWorkers_TerminationCauses(t *testing.T) {
	kill := func(k podworkers.KillOptions) func(*podworkers.Workers) {
		return func(w *podworkers.Workers) { w.RequestKill("a", k) }
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
		{"deletion timestamp", 30, []func(*podworkers.Workers){update(deleted(20))}, "grace=20s", podworkers.Deleted}, // PW-4
		{"succeeded", 30, []func(*podworkers.Workers){update(phase(corev1.PodSucceeded))}, "grace=30s", podworkers.Completed},
		{"failed", 30, []func(*podworkers.Workers){update(phase(corev1.PodFailed))}, "grace=30s", podworkers.Completed},
		{"killed", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{})}, "grace=30s", podworkers.Killed},
		{"evicted", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Evicted: true, Reason: "Evicted", GracePeriod: time.Second})}, "grace=1s Evicted evicted", podworkers.Evicted},
		{"removed", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Deleted: true})}, "grace=30s deleted", podworkers.Removed},

		{"own grace of zero is one second", 0, []func(*podworkers.Workers){kill(podworkers.KillOptions{})}, "grace=1s", podworkers.Killed}, // PW-5
		{"deletion's grace of zero too", 30, []func(*podworkers.Workers){update(deleted(0))}, "grace=1s", podworkers.Deleted},
		{"the API server may have given more", 30, []func(*podworkers.Workers){update(deleted(90))}, "grace=1m30s", podworkers.Deleted},
		{"a kill cannot lengthen", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{GracePeriod: time.Minute})}, "grace=30s", podworkers.Killed},
		{"a kill's grace is in whole seconds", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{GracePeriod: 2900 * time.Millisecond})}, "grace=2s", podworkers.Killed},
		{"and one at least", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{GracePeriod: time.Millisecond})}, "grace=1s", podworkers.Killed},
		{"a negative one says nothing", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{GracePeriod: -time.Second})}, "grace=30s", podworkers.Killed},
		{"force is zero", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{Force: true, GracePeriod: time.Minute})}, "grace=0s", podworkers.Killed},
		{"force with a grace of zero", 0, []func(*podworkers.Workers){kill(podworkers.KillOptions{Force: true})}, "grace=0s", podworkers.Killed},
		{"shrinks", 30, []func(*podworkers.Workers){kill(podworkers.KillOptions{GracePeriod: 20 * time.Second}), update(deleted(10)), kill(podworkers.KillOptions{GracePeriod: 15 * time.Second})}, "grace=10s", podworkers.Killed},
		{"the first reason stays", 30, []func(*podworkers.Workers){
			kill(podworkers.KillOptions{Deleted: true}), kill(podworkers.KillOptions{Reason: "Preempting"}),
			kill(podworkers.KillOptions{Reason: "Evicted", Evicted: true}),
		}, "grace=30s Preempting evicted deleted", podworkers.Removed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				// Everything is asked for while a sync is under way that does not heed its
				// context, so that the first termination sees all of it.
				f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
					if call == "sync" {
						time.Sleep(time.Second)
					}
					return runtime.SyncResult{}, nil
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
		f := &fake{do: func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			return runtime.SyncResult{Terminal: true}, nil
		}}
		w := run(t, f)
		w.Update(create(pod("a")))
		synctest.Wait()
		assert.Equal(t, []string{"0s sync a", "0s terminate a grace=30s", "0s finish a grace=30s"}, f.take())
		assert.True(t, w.IsFinished("a"))

		// What it left may go when it is deleted, by one more Finish.
		w.RequestKill("a", podworkers.KillOptions{Deleted: true})
		synctest.Wait()
		assert.Equal(t, []string{"0s finish a grace=30s deleted"}, f.take())
		w.RequestKill("a", podworkers.KillOptions{Deleted: true})
		synctest.Wait()
		assert.Empty(t, f.take())
	})
}

// ST-8: a deletion timestamp that comes when all is done, or while it is being
// done, has one more Finish, which can tell whoever set it that the pod has ended.
func TestWorkers_FinishOnceMoreForADeletionTimestamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{do: func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "finish" {
				time.Sleep(time.Second)
			}
			return runtime.SyncResult{Terminal: true}, nil
		}}
		w := run(t, f)
		w.Update(create(pod("a")))
		w.Update(create(pod("b")))
		time.Sleep(500 * time.Millisecond)
		for range 2 {
			w.Update(podworkers.Update{Pod: pod("b", deleted(5))}) // its Finish is under way
		}
		time.Sleep(time.Minute)
		f.take()
		for _, op := range []podworkers.UpdateType{podworkers.PodReconcile, podworkers.PodUpdate, podworkers.PodReconcile} {
			w.Update(podworkers.Update{Type: op, Pod: pod("a", deleted(5))})
			w.Update(podworkers.Update{Type: op, Pod: pod("b", deleted(5))})
			time.Sleep(time.Minute)
		}
		assert.Equal(t, []string{"1m0.5s finish a grace=30s"}, f.take(), "b's was told by its second one")
		assert.True(t, w.IsFinished("a"))
	})
}

// PW-6: the start of the end and each shorter grace cancel what is under way; a
// longer grace does not.
func TestCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var causes []error
		f.do = func(ctx context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "finish" {
				return runtime.SyncResult{}, nil
			}
			err := untilCancelled(ctx)
			causes = append(causes, err)
			return runtime.SyncResult{}, err
		}
		w := run(t, f)
		w.Update(create(pod("a")))
		for _, k := range []podworkers.KillOptions{
			{}, {GracePeriod: 20 * time.Second}, {GracePeriod: 25 * time.Second}, {GracePeriod: time.Second}, {Force: true}, {Force: true}, {},
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

// PW-2, PW-3: one call at a time; what comes meanwhile is one more turn, with the
// newest pod and the oldest time.
func TestUpdatesMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{do: slow(time.Second)}
		var asked []time.Duration
		w := run(t, f, func(c *podworkers.Config) {
			c.Hooks.SyncStarted = func(turn podworkers.SyncCall) { asked = append(asked, turn.RequestedAt.Sub(f.began)) }
		})
		w.Update(create(pod("a", version("1"))))
		synctest.Wait()
		for i, v := range []string{"2", "3", "4"} {
			time.Sleep(100 * time.Millisecond)
			at := time.Now()
			if i == 1 {
				at = f.began.Add(50 * time.Millisecond)
			}
			w.Update(podworkers.Update{Pod: pod("a", version(v)), StartTime: at})
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
		f.do = func(ctx context.Context, _ string, uid types.UID) (runtime.SyncResult, error) {
			if uid == "hung" {
				return runtime.SyncResult{}, untilCancelled(ctx)
			}
			return runtime.SyncResult{}, nil
		}
		w := run(t, f)
		w.Update(create(pod("hung")))
		w.Update(create(pod("a")))
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{WaitUntilFinished: true}))
		assert.Zero(t, time.Since(f.began))
	})
}

// PW-7: every waiter is told once, at the time that it asked for.
func TestWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			time.Sleep(map[string]time.Duration{"terminate": 2 * time.Second, "finish": 3 * time.Second}[call])
			return runtime.SyncResult{}, nil
		}
		w := run(t, f)
		w.Update(create(pod("a")))
		synctest.Wait()
		var mu sync.Mutex
		told := map[string][]time.Duration{}
		wait := func(name string, uid types.UID, k podworkers.KillOptions, want error) {
			k.Done = func(err error) {
				mu.Lock()
				defer mu.Unlock()
				assert.ErrorIs(t, err, want, name)
				told[name] = append(told[name], time.Since(f.began))
			}
			w.RequestKill(uid, k)
		}
		wait("first", "a", podworkers.KillOptions{}, nil)
		wait("second", "a", podworkers.KillOptions{}, nil)
		wait("reclaimed", "a", podworkers.KillOptions{WaitUntilFinished: true}, nil)
		wait("unknown", "b", podworkers.KillOptions{}, runtime.ErrNotFound)
		time.Sleep(4 * time.Second)
		wait("terminated", "a", podworkers.KillOptions{}, nil)
		time.Sleep(4 * time.Second)
		wait("finished", "a", podworkers.KillOptions{WaitUntilFinished: true}, nil)
		w.SyncKnownPods(nil, true)
		wait("forgotten", "a", podworkers.KillOptions{}, nil)
		synctest.Wait()
		assert.Equal(t, map[string][]time.Duration{
			"first": {2 * time.Second}, "second": {2 * time.Second}, "reclaimed": {5 * time.Second}, "unknown": {0},
			"terminated": {4 * time.Second}, "finished": {8 * time.Second}, "forgotten": {8 * time.Second},
		}, told)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.Update(create(pod("c")))
		assert.ErrorIs(t, w.Kill(ctx, "c", podworkers.KillOptions{}), context.DeadlineExceeded)
	})
}

// PW-7, SL-7: who waits when the workers stop is told so, and no pod is ended.
func TestStopTellsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.do = func(ctx context.Context, _ string, _ types.UID) (runtime.SyncResult, error) {
			return runtime.SyncResult{}, untilCancelled(ctx)
		}
		w, err := podworkers.New(podworkers.Config{Syncer: f, Inspector: f})
		require.NoError(t, err)
		f.began = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- w.Run(ctx) }()
		w.Update(create(pod("ending")))
		w.Update(create(pod("syncing")))
		synctest.Wait()
		var told []error
		w.RequestKill("ending", podworkers.KillOptions{Done: func(err error) { told = append(told, err) }})
		synctest.Wait()
		cancel()
		require.NoError(t, <-stopped)
		assert.Equal(t, []error{podworkers.ErrStopped}, told)
		f.take()
		assert.ErrorIs(t, w.Kill(t.Context(), "syncing", podworkers.KillOptions{}), podworkers.ErrStopped)
		w.Update(create(pod("late")))
		time.Sleep(time.Hour)
		assert.Empty(t, f.take(), "nothing is called after Run")
	})
}
