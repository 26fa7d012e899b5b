package podworkers_test

import (
	"context"
	"errors"
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

// PW-9: static pods of one name live one after another, in the order in which they
// came; one that ends before its turn is never called for.
func TestWorkers_StaticPodsOfOneNameRunOneAtATime(t *testing.T) {
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
		assert.True(t, st.WaitingToStart)

		assert.NoError(t, w.Kill(t.Context(), "u2", podworkers.KillOptions{Deleted: true, WaitUntilFinished: true}))
		assert.True(t, w.IsFinished("u2"))
		assert.False(t, w.CouldHaveRunningContainers("u2"))
		assert.Empty(t, f.take())

		assert.NoError(t, w.Kill(t.Context(), "u1", podworkers.KillOptions{Deleted: true, WaitUntilFinished: true}))
		synctest.Wait()
		assert.Equal(t, []string{
			"0s terminate web grace=30s deleted", "0s finish web grace=30s deleted", "0s sync web",
		}, f.take())
		st, _ = w.State("u3")
		assert.False(t, st.WaitingToStart)
		st, _ = w.State("u4")
		assert.True(t, st.WaitingToStart)
	})
}

// PW-9, SR-3: a static pod waits for what a former agent left of its name.
func TestStaticPodWaitsForOrphanOfItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.do = func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			time.Sleep(time.Second)
			return runtime.SyncResult{}, nil
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
func TestWorkers_RecreatedUIDIsSyncedAfterFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		w := run(t, f)
		w.Update(create(pod("a", version("1"))))
		synctest.Wait()
		f.do = func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			time.Sleep(time.Second)
			return runtime.SyncResult{}, nil
		}
		all := map[types.UID]struct{}{"a": {}}
		w.RequestKill("a", podworkers.KillOptions{Deleted: true})
		w.Update(create(pod("a", version("2"))))
		assert.Empty(t, w.SyncKnownPods(all, true), "not before it has finished")
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"0s sync a v1", "0s terminate a grace=30s deleted", "1s finish a grace=30s deleted"}, f.take())
		assert.Equal(t, []types.UID{"a"}, w.SyncKnownPods(all, true))
		assert.Empty(t, w.SyncKnownPods(all, true), "once")
		assert.False(t, w.IsKnown("a"))

		f.since = nil
		w.Update(create(pod("a", version("2"))))
		synctest.Wait()
		assert.Equal(t, []string{"1m0s sync a v2"}, f.take())
		assert.Greater(t, f.since["a"][0].Sub(f.began), time.Minute, "what is left of its former life is no view of it") // PW-14

		// Removed again before it could come back, it does not.
		w.RequestKill("a", podworkers.KillOptions{Deleted: true})
		assert.True(t, w.RequestRecreation("a"))
		w.RequestKill("a", podworkers.KillOptions{Deleted: true})
		time.Sleep(time.Minute)
		assert.Empty(t, w.SyncKnownPods(all, true))
		assert.False(t, w.ForgetFinished("a", false))
		assert.False(t, w.IsKnown("a"))
	})
}

// PW-10: that it came back counts, and not a set of pods from before.
func TestUIDThatCameBackIsNotForgottenByAnOldSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t, &fake{})
		for _, settle := range []func() bool{
			func() bool { return len(w.SyncKnownPods(map[types.UID]struct{}{}, true)) == 1 },
			func() bool { return w.ForgetFinished("a", false) },
		} {
			w.Update(create(pod("a")))
			require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{Deleted: true, WaitUntilFinished: true}))
			require.True(t, w.RequestRecreation("a"))
			assert.True(t, settle())
			assert.False(t, w.IsKnown("a"))
		}
	})
}

// PW-11: orphans are only terminated.
func TestOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		fails := 1
		f.do = func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			fails--
			if fails >= 0 {
				return runtime.SyncResult{}, errors.New("no luck")
			}
			return runtime.SyncResult{}, nil
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
		assert.False(t, w.IsKnown("o"))

		w.Update(podworkers.Update{Orphan: &seen})
		synctest.Wait()
		assert.Empty(t, f.take(), "seen before it ended")
		seen.ObservedAt = time.Now()
		w.Update(podworkers.Update{Orphan: &seen, Kill: &podworkers.KillOptions{GracePeriod: time.Second}})
		w.Update(create(pod("o")))
		synctest.Wait()
		assert.Equal(t, []string{"1m0s terminate left grace=1s deleted"}, f.take())
		assert.Equal(t, []types.UID{"o"}, w.SyncKnownPods(map[types.UID]struct{}{"o": {}}, true), "it was configured meanwhile") // PW-10

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
		finished := map[types.UID]int{}
		w := run(t, f, func(c *podworkers.Config) {
			c.IsStopped = func(uid types.UID) bool { return ended[uid] }
			c.OnFinished = func(uid types.UID) { finished[uid]++ }
		})
		w.Update(create(pod("a", phase(corev1.PodSucceeded))))
		synctest.Wait()
		assert.True(t, w.IsFinished("a"))
		assert.Empty(t, f.take())
		assert.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{}))
		assert.Empty(t, f.take())

		w.Update(create(pod("b", phase(corev1.PodFailed)))) // something of it is alive
		synctest.Wait()
		assert.Equal(t, []string{"0s terminate b grace=30s", "0s finish b grace=30s"}, f.take())

		w.Update(create(pod("c", phase(corev1.PodFailed), deleted(9)))) // and somebody waits to hear of it
		synctest.Wait()
		assert.Equal(t, []string{"0s finish c grace=9s"}, f.take())
		assert.Equal(t, map[types.UID]int{"a": 1, "b": 1, "c": 1}, finished, "nothing that was kept for a deletion is gone")
	})
}

// PW-7: who asks for the end of a pod that is forgotten is told that it has ended, as
// long as anybody can have missed it; later the pod is not known.
func TestKillOfAForgottenPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := run(t, &fake{})
		w.Update(create(pod("a")))
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{Deleted: true, WaitUntilFinished: true}))
		w.SyncKnownPods(nil, true)
		require.False(t, w.IsKnown("a"))
		time.Sleep(10 * time.Minute)
		w.SyncKnownPods(nil, true)
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{}))
		time.Sleep(time.Minute)
		w.SyncKnownPods(nil, true)
		require.ErrorIs(t, w.Kill(t.Context(), "a", podworkers.KillOptions{}), runtime.ErrNotFound)
	})
}

// PW-13: the questions of others, in each phase.
func TestQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		block := make(chan struct{})
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call != "sync" {
				<-block
			}
			return runtime.SyncResult{}, nil
		}
		w := run(t, f)
		type answers struct{ known, finished, running, ending, remove, busy bool }
		check := func(when string, want answers) {
			t.Helper()
			synctest.Wait()
			assert.Equal(t, want, answers{
				w.IsKnown("a"), w.IsFinished("a"), w.CouldHaveRunningContainers("a"),
				w.ShouldPodContainersBeTerminating("a"), w.ShouldPodContentBeRemoved("a"), w.IsWorking("a"),
			}, when)
		}
		check("unknown, before the first full sync", answers{running: true})
		w.SyncKnownPods(nil, false)
		check("unknown, after one that was not full", answers{running: true})
		w.SyncKnownPods(nil, true)
		check("unknown", answers{ending: true, remove: true})
		w.SyncKnownPods(nil, false)
		check("full once is full", answers{ending: true, remove: true})
		w.Update(create(pod("a")))
		check("syncing", answers{known: true, running: true})
		w.RequestKill("a", podworkers.KillOptions{Deleted: true})
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
		for uid, k := range map[string]podworkers.KillOptions{"killed": {}, "evicted": {Evicted: true}} {
			w.Update(create(pod(uid)))
			require.NoError(t, w.Kill(t.Context(), types.UID(uid), k))
		}
		assert.False(t, w.ShouldPodContentBeRemoved("killed"))
		assert.True(t, w.ShouldPodContentBeRemoved("evicted"))
	})
}
