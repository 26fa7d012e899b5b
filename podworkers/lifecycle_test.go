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

// PW-9: static pods of one full name run one at a time, in order of arrival. One that
// is terminated before it started is never synced.
func TestWorkers_StaticPodsOfOneNameRunOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		w := runWorkers(t, f)
		for _, uid := range []string{"u1", "u2", "u3", "u4"} {
			w.Update(create(newTestPod(uid, static("web"))))
			w.Update(create(newTestPod("x"+uid, func(p *corev1.Pod) { p.Name = "web" })))
		}
		synctest.Wait()
		assert.Len(t, f.take(), 1+4, "the first static pod, and the pods that are not static")
		st, _ := w.State("u3")
		assert.True(t, st.WaitingToStart)

		assert.NoError(t, w.Kill(t.Context(), "u2", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}, WaitUntilFinished: true}))
		assert.True(t, w.IsFinished("u2"))
		assert.False(t, w.CouldHaveRunningContainers("u2"))
		assert.Empty(t, f.take())

		assert.NoError(t, w.Kill(t.Context(), "u1", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}, WaitUntilFinished: true}))
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

// PW-9, SR-3: a static pod waits for an orphan of its full name.
func TestWorkers_StaticPodWaitsForOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		f.do = func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			time.Sleep(time.Second)
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		w.Update(podworkers.Update{Orphan: &runtime.Pod{
			UID: "old", Namespace: "ns", Name: "web", Sandboxes: []runtime.Sandbox{{Source: "file", GracePeriod: 7 * time.Second}},
		}})
		w.Update(create(newTestPod("new", static("web"))))
		time.Sleep(10 * time.Second)
		assert.Equal(t, []string{"0s terminate web grace=7s deleted", "1s sync web"}, f.take())
	})
}

// PW-9: no pod waits for an orphan of which nothing runs: its removal may never succeed.
func TestWorkers_StaticPodDoesNotWaitForStoppedOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{isRunning: func(types.UID) bool { return false }}
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "terminate" {
				return runtime.SyncResult{}, errors.New("no answer")
			}
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "old", Namespace: "ns", Name: "web", Sandboxes: []runtime.Sandbox{{Source: "file"}}}})
		w.Update(create(newTestPod("v1", static("web"))))
		w.Update(create(newTestPod("v2", static("web"))))
		synctest.Wait()
		assert.ElementsMatch(t, []string{"0s terminate web grace=30s deleted", "0s sync web"}, f.take())
		w.RequestKill("v1", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		w.RequestKill("old", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		synctest.Wait()
		st, _ := w.State("v2")
		assert.True(t, st.WaitingToStart, "others are still waited for")
	})
}

// PW-10: a UID that is recreated during termination is added again after it has
// finished.
func TestWorkers_RecreatedUIDIsSyncedAfterFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("a", version("1"))))
		synctest.Wait()
		f.do = func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			time.Sleep(time.Second)
			return runtime.SyncResult{}, nil
		}
		all := map[types.UID]struct{}{"a": {}}
		w.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		w.Update(create(newTestPod("a", version("2"))))
		assert.Empty(t, w.SyncKnownPods(all, true), "not before it has finished")
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"0s sync a v1", "0s terminate a grace=30s deleted", "1s finish a grace=30s deleted"}, f.take())
		assert.Equal(t, []types.UID{"a"}, w.SyncKnownPods(all, true))
		assert.Empty(t, w.SyncKnownPods(all, true), "once")
		assert.False(t, w.IsKnown("a"))

		f.newerThan = nil
		w.Update(create(newTestPod("a", version("2"))))
		synctest.Wait()
		assert.Equal(t, []string{"1m0s sync a v2"}, f.take())
		assert.Greater(t, f.newerThan["a"][0].Sub(f.startTime), time.Minute, "a state observed before it was forgotten is outdated") // PW-14

		// A deletion cancels the recreation.
		w.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		assert.True(t, w.RequestRecreation("a"))
		w.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		time.Sleep(time.Minute)
		assert.Empty(t, w.SyncKnownPods(all, true))
		assert.False(t, w.ForgetFinished("a", false))
		assert.False(t, w.IsKnown("a"))
	})
}

// PW-10: a recreation is newer than the set of desired pods.
func TestWorkers_RecreatedPodNeedNotBeDesired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWorkers(t, &fakeSyncer{})
		for _, forget := range []func() bool{
			func() bool { return len(w.SyncKnownPods(map[types.UID]struct{}{}, true)) == 1 },
			func() bool { return w.ForgetFinished("a", false) },
		} {
			w.Update(create(newTestPod("a")))
			require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}, WaitUntilFinished: true}))
			require.True(t, w.RequestRecreation("a"))
			assert.True(t, forget())
			assert.False(t, w.IsKnown("a"))
		}
	})
}

// PW-11: orphans are only terminated.
func TestWorkers_Orphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		fails := 1
		f.do = func(context.Context, string, types.UID) (runtime.SyncResult, error) {
			fails--
			if fails >= 0 {
				return runtime.SyncResult{}, errors.New("sync failed")
			}
			time.Sleep(time.Millisecond) // updates arrive before a termination ends
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		observed := runtime.Pod{UID: "o", Namespace: "ns", Name: "left", Containers: []runtime.Container{{GracePeriod: 5 * time.Second}}}
		observed.ObservedAt = time.Now()
		w.Update(podworkers.Update{Orphan: &observed})
		w.Update(podworkers.Update{Orphan: &observed})
		synctest.Wait()
		st, _ := w.State("o")
		assert.True(t, st.Orphan)
		assert.False(t, st.Static)
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"0s terminate left grace=5s deleted", "10s terminate left grace=5s deleted"}, f.take())
		assert.False(t, w.IsKnown("o"))

		w.Update(podworkers.Update{Orphan: &observed})
		synctest.Wait()
		assert.Empty(t, f.take(), "observed before it was forgotten")
		observed.ObservedAt = time.Now()
		w.Update(podworkers.Update{Orphan: &observed, Kill: &podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: time.Second}}})
		w.Update(create(newTestPod("o")))
		time.Sleep(time.Second)
		assert.Equal(t, []string{"1m0s terminate left grace=1s deleted"}, f.take())
		assert.Equal(t, []types.UID{"o"}, w.SyncKnownPods(map[types.UID]struct{}{"o": {}}, true), "it was added meanwhile") // PW-10

		w.Update(create(newTestPod("known")))
		time.Sleep(time.Second)
		f.take()
		w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "known"}})
		synctest.Wait()
		assert.Empty(t, f.take(), "a known pod is not an orphan")
	})
}

// PW-12: a pod that is terminal and stopped when added is not terminated again. Its Finish is called.
func TestWorkers_TerminalPodWhenAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{isRunning: func(uid types.UID) bool { return uid == "b" }}
		finished := map[types.UID]int{}
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Hooks.PodFinished = func(uid types.UID) { finished[uid]++ }
		})
		w.Update(create(newTestPod("a", phase(corev1.PodSucceeded))))
		synctest.Wait()
		assert.True(t, w.IsFinished("a"))
		assert.Equal(t, []string{"0s finish a grace=30s"}, f.take(), "what a previous process did not release or report")
		assert.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{}))
		assert.Empty(t, f.take())

		w.Update(create(newTestPod("b", phase(corev1.PodFailed)))) // it has a container
		synctest.Wait()
		assert.Equal(t, []string{"0s terminate b grace=30s", "0s finish b grace=30s"}, f.take())

		w.Update(create(newTestPod("c", phase(corev1.PodFailed), deleted(9)))) // its deletion is handled by Finish
		synctest.Wait()
		assert.Equal(t, []string{"0s finish c grace=9s"}, f.take())
		assert.Equal(t, map[types.UID]int{"a": 1, "b": 1, "c": 1}, finished, "PodFinished is called once")
	})
}

// PW-7: the kill of a forgotten pod succeeds until its tombstone expires, and then
// the pod is unknown.
func TestWorkers_KillForgottenPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWorkers(t, &fakeSyncer{})
		w.Update(create(newTestPod("a")))
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}, WaitUntilFinished: true}))
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

// PW-13: the answers of the queries in each phase.
func TestWorkers_Queries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		block := make(chan struct{})
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call != "sync" {
				<-block
			}
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		type answers struct{ known, finished, running, terminating, remove, working bool }
		check := func(when string, want answers) {
			t.Helper()
			synctest.Wait()
			st, _ := w.State("a")
			assert.Equal(t, want, answers{
				w.IsKnown("a"), w.IsFinished("a"), w.CouldHaveRunningContainers("a"),
				w.ShouldPodContainersBeTerminating("a"), w.ShouldPodContentBeRemoved("a"), st.Working,
			}, when)
		}
		check("unknown, before the first complete set", answers{running: true})
		w.SyncKnownPods(nil, false)
		check("unknown, after an incomplete set", answers{running: true})
		w.SyncKnownPods(nil, true)
		check("unknown", answers{terminating: true, remove: true})
		w.SyncKnownPods(nil, false)
		check("unknown, after a complete and an incomplete set", answers{terminating: true, remove: true})
		w.Update(create(newTestPod("a")))
		check("syncing", answers{known: true, running: true})
		w.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		check("terminating", answers{known: true, running: true, terminating: true, working: true})
		block <- struct{}{}
		check("terminated", answers{known: true, terminating: true, remove: true, working: true})
		block <- struct{}{}
		check("finished", answers{known: true, finished: true, terminating: true, remove: true})
	})
}

// PW-13: the content of a pod that was only killed is kept.
func TestWorkers_KeepsContentOfKilledPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWorkers(t, &fakeSyncer{})
		for uid, k := range map[string]podworkers.KillOptions{"killed": {}, "evicted": {Termination: runtime.Termination{Evicted: true}}} {
			w.Update(create(newTestPod(uid)))
			require.NoError(t, w.Kill(t.Context(), types.UID(uid), k))
		}
		assert.False(t, w.ShouldPodContentBeRemoved("killed"))
		assert.True(t, w.ShouldPodContentBeRemoved("evicted"))
	})
}
