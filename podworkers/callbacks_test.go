package podworkers_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
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

// Callbacks that a callback causes come after those that are queued already.
func TestWorkers_CallbacksDoNotNest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *podworkers.Workers
		var callbacks []string
		w = runWorkers(t, &fakeSyncer{}, func(c *podworkers.Config) {
			c.Hooks.PhaseChanged = func(_ types.UID, _, to podworkers.Phase, _ podworkers.Cause) {
				if to == podworkers.Terminating {
					callbacks = append(callbacks, "terminating")
					w.RequestKill("unknown", podworkers.KillOptions{Done: func(error) { callbacks = append(callbacks, "unknown") }})
					callbacks = append(callbacks, "killed")
				}
			}
		})
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		w.RequestKill("a", podworkers.KillOptions{})
		synctest.Wait()
		assert.Equal(t, []string{"terminating", "killed", "unknown"}, callbacks)
	})
}

// PhaseChanged returns before the first call of the new phase begins.
func TestWorkers_PhaseChangedPrecedesCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Hooks.PhaseChanged = func(types.UID, podworkers.Phase, podworkers.Phase, podworkers.Cause) { time.Sleep(time.Second) }
		})
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		w.RequestKill("a", podworkers.KillOptions{})
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"0s sync a", "1s terminate a grace=30s", "2s finish a grace=30s"}, f.take())
	})
}

// PodFinished is called again when a pod is deleted after it has finished, and
// DrainFinished returns the pod again.
func TestWorkers_PodFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finished := 0
		w := runWorkers(t, &fakeSyncer{}, func(c *podworkers.Config) { c.Hooks.PodFinished = func(types.UID) { finished++ } })
		w.Update(create(newTestPod("early", phase(corev1.PodFailed))))
		synctest.Wait()
		notify := w.NotifyFinished()
		assert.Empty(t, w.DrainFinished(), "there was no reader")
		assert.Empty(t, notify)
		finished = 0
		w.Update(create(newTestPod("a")))
		w.RequestKill("a", podworkers.KillOptions{})
		synctest.Wait()
		assert.Equal(t, 1, finished)
		<-notify
		assert.Equal(t, []types.UID{"a"}, w.DrainFinished())
		w.Requeue("a", podworkers.RequeueNow)
		w.RequestKill("a", podworkers.KillOptions{})
		synctest.Wait()
		assert.Equal(t, 1, finished)
		w.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}})
		synctest.Wait()
		assert.Equal(t, 2, finished)
		assert.Len(t, notify, 1)
		assert.Equal(t, []types.UID{"a"}, w.DrainFinished())
		assert.Empty(t, w.DrainFinished())

		// Its reader is to start it.
		<-notify
		require.True(t, w.RequestRecreation("a"))
		assert.Len(t, notify, 1)
		assert.Equal(t, []types.UID{"a"}, w.DrainFinished())
		st, _ := w.State("a")
		assert.True(t, st.Recreate)
		assert.Equal(t, 2, finished)
	})
}

// An orphan that was terminated was removed as well: it is inspected, so that others do not take it for one that is there.
func TestWorkers_TerminatedOrphanIsInspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var callbacks []string
		w := runWorkers(t, &fakeSyncer{}, func(c *podworkers.Config) {
			c.Observer = observer{
				started: func(uid types.UID) { callbacks = append(callbacks, "started "+string(uid)) },
				ended: func(uid types.UID, changed bool) {
					callbacks = append(callbacks, fmt.Sprintf("ended %s %v", uid, changed))
				},
			}
		})
		w.Update(podworkers.Update{Orphan: &runtime.Pod{UID: "o"}})
		synctest.Wait()
		assert.Equal(t, []string{"started o", "ended o true"}, callbacks)
	})
}

// PW-8: State.Failures counts consecutive failures of all phases and is reset by a
// success.
func TestWorkers_Failures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Value // the method that fails
		f := &fakeSyncer{do: func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if failing.Load() == call {
				return runtime.SyncResult{}, errors.New("call failed")
			}
			return runtime.SyncResult{}, nil
		}}
		failing.Store("sync")
		w := runWorkers(t, f)
		failures := func() int {
			synctest.Wait()
			st, _ := w.State("a")
			return st.Failures
		}
		w.Update(create(newTestPod("a")))
		assert.Equal(t, 1, failures())
		time.Sleep(10 * time.Second)
		assert.Equal(t, 2, failures())
		failing.Store("finish")
		time.Sleep(10 * time.Second)
		assert.Zero(t, failures())
		w.RequestKill("a", podworkers.KillOptions{})
		assert.Equal(t, 1, failures())
		failing.Store("")
		time.Sleep(10 * time.Second)
		assert.Zero(t, failures())
		assert.True(t, w.IsFinished("a"))
	})
}
