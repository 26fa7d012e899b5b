package podworkers_test

import (
	"bytes"
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

// A pod counts as drained only if nothing but draining terminates it, because only
// then another process starts it again.
func TestWorkers_Drained(t *testing.T) {
	drain := podworkers.KillOptions{Termination: runtime.Termination{Drained: true}}
	for _, tt := range []struct {
		name  string
		kills []podworkers.KillOptions
		want  bool
	}{
		{"drained", []podworkers.KillOptions{drain}, true},
		{"drained and killed", []podworkers.KillOptions{drain, {}}, true},
		{"killed first", []podworkers.KillOptions{{}, drain}, false},
		{"deleted at once", []podworkers.KillOptions{{Termination: runtime.Termination{Drained: true, Deleted: true}}}, false},
		{"evicted at once", []podworkers.KillOptions{{Termination: runtime.Termination{Drained: true, Evicted: true}}}, false},
		{"with a reason at once", []podworkers.KillOptions{{Termination: runtime.Termination{Drained: true, Reason: "Preempting"}}}, false},
		{"deleted later", []podworkers.KillOptions{drain, {Termination: runtime.Termination{Deleted: true}}}, false},
		{"evicted later", []podworkers.KillOptions{drain, {Termination: runtime.Termination{Evicted: true}}}, false},
		{"with a reason later", []podworkers.KillOptions{drain, {Termination: runtime.Termination{Reason: "Preempting"}}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := runWorkers(t, &fakeSyncer{do: slow(time.Second)})
				w.Update(create(newTestPod("a")))
				synctest.Wait()
				for _, k := range tt.kills {
					w.RequestKill("a", k)
				}
				time.Sleep(time.Minute)
				st, ok := w.State("a")
				require.True(t, ok)
				assert.True(t, st.Idle)
				assert.Equal(t, tt.want, st.Termination.Drained)
			})
		})
	}
}

// PW-4: a pod that is evicted for a limit of its own and for the node is disrupted.
func TestWorkers_OverLimit(t *testing.T) {
	byNode := podworkers.KillOptions{Termination: runtime.Termination{Evicted: true}}
	overLimit := podworkers.KillOptions{Termination: runtime.Termination{Evicted: true, OverLimit: true}}
	for _, tt := range []struct {
		name  string
		kills []podworkers.KillOptions
		want  bool
	}{
		{"over its limit", []podworkers.KillOptions{overLimit}, true},
		{"over its limit twice", []podworkers.KillOptions{overLimit, overLimit}, true},
		{"killed before", []podworkers.KillOptions{{}, overLimit}, true},
		{"killed later", []podworkers.KillOptions{overLimit, {}}, true},
		{"evicted by the node", []podworkers.KillOptions{byNode}, false},
		{"evicted by the node before", []podworkers.KillOptions{byNode, overLimit}, false},
		{"evicted by the node later", []podworkers.KillOptions{overLimit, byNode}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := runWorkers(t, &fakeSyncer{do: slow(time.Second)})
				w.Update(create(newTestPod("a")))
				synctest.Wait()
				for _, k := range tt.kills {
					w.RequestKill("a", k)
				}
				time.Sleep(time.Minute)
				st, ok := w.State("a")
				require.True(t, ok)
				assert.True(t, st.Termination.Evicted)
				assert.Equal(t, tt.want, st.Termination.OverLimit)
			})
		})
	}
}

// PW-6: a deletion during Finish does not cancel it: no container runs any more.
func TestWorkers_DeletionDoesNotCancelFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{do: func(ctx context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "finish" {
				select {
				case <-ctx.Done():
					assert.Fail(t, "finish was cancelled", "%v", context.Cause(ctx))
				case <-time.After(time.Second):
				}
			}
			return runtime.SyncResult{}, nil
		}}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("a")))
		w.RequestKill("a", podworkers.KillOptions{})
		synctest.Wait()
		w.Update(podworkers.Update{Pod: newTestPod("a", deleted(5))})
		time.Sleep(time.Minute)
		assert.True(t, w.IsFinished("a"))
		st, _ := w.State("a")
		assert.Equal(t, 30*time.Second, st.Termination.GracePeriod)
	})
}

// PW-6: a call that was cancelled for a shorter grace period is not a failure, also
// if the shorter grace period came with a PodReconcile.
func TestWorkers_ShorterGracePeriodIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{do: func(ctx context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "terminate" {
				return runtime.SyncResult{}, untilCancelled(ctx)
			}
			return runtime.SyncResult{}, nil
		}}
		w := runWorkers(t, f)
		w.Update(create(newTestPod("a")))
		w.RequestKill("a", podworkers.KillOptions{})
		synctest.Wait()
		w.Update(podworkers.Update{Type: podworkers.PodReconcile, Pod: newTestPod("a", deleted(5))})
		synctest.Wait()
		st, _ := w.State("a")
		assert.True(t, st.Working)
		assert.Zero(t, st.Failures)
		calls := f.take()
		assert.Equal(t, "0s terminate a grace=5s", calls[len(calls)-1])
	})
}

// PW-4: an update can carry a kill.
func TestWorkers_UpdateWithKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		w := runWorkers(t, f)
		var results []error
		kill := &podworkers.KillOptions{Termination: runtime.Termination{Evicted: true, Reason: "Evicted"}, Done: func(err error) { results = append(results, err) }}
		w.Update(podworkers.Update{Pod: newTestPod("a"), Kill: kill})
		synctest.Wait()
		assert.Equal(t, []string{"0s terminate a grace=30s Evicted evicted", "0s finish a grace=30s Evicted evicted"}, f.take())
		assert.Equal(t, []error{nil}, results)

		w.Update(podworkers.Update{Kill: kill})
		require.Len(t, results, 2)
		require.ErrorIs(t, results[1], runtime.ErrInvalid)
		assert.EqualError(t, results[1], "update has neither Pod nor Orphan: "+runtime.ErrInvalid.Error())
	})
}

// PW-7: a kill need not have a Done, and Kill calls the one that it is given.
func TestWorkers_KillDoneIsOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := runWorkers(t, &fakeSyncer{}, logTo(&log))
		w.Update(podworkers.Update{Kill: &podworkers.KillOptions{}})
		w.RequestKill("unknown", podworkers.KillOptions{})
		w.Update(create(newTestPod("a")))
		calls := 0
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{Done: func(err error) {
			assert.NoError(t, err)
			calls++
		}}))
		assert.Equal(t, 1, calls)
		assert.EqualError(t, w.Kill(t.Context(), "unknown", podworkers.KillOptions{}), "kill pod unknown: "+runtime.ErrNotFound.Error())
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("impatient"))
		err := w.Kill(ctx, "a", podworkers.KillOptions{})
		if err != nil { // both are ready
			assert.EqualError(t, err, "wait for termination of pod a: impatient")
		}
		synctest.Wait()
		assert.NotContains(t, log.String(), "panic")
	})
}

// SL-7: Drain reports each pod that it could not wait for, sorted by UID.
func TestWorkers_DrainErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{do: func(ctx context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			if call == "terminate" {
				return runtime.SyncResult{}, untilCancelled(ctx)
			}
			return runtime.SyncResult{}, nil
		}}
		w, err := podworkers.New(podworkers.Config{Syncer: f, Inspector: f})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		for _, uid := range []string{"e", "c", "a", "d", "b"} {
			w.Update(create(newTestPod(uid)))
		}
		drainCtx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("too slow"))
		defer cancel()
		require.EqualError(t, w.Drain(drainCtx, podworkers.KillOptions{}),
			"drain pod a: too slow\ndrain pod b: too slow\ndrain pod c: too slow\ndrain pod d: too slow\ndrain pod e: too slow")

		drained := make(chan error)
		go func() { drained <- w.Drain(t.Context(), podworkers.KillOptions{}) }()
		synctest.Wait()
		stop()
		require.NoError(t, <-ended)
		err = <-drained
		require.ErrorIs(t, err, podworkers.ErrStopped)
		for _, uid := range []string{"a", "b", "c", "d", "e"} {
			assert.ErrorContains(t, err, "drain pod "+uid+": pod workers stopped")
		}
	})
}

// PW-13: Snapshot returns all pods, sorted by UID, and State one of them.
func TestWorkers_Snapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWorkers(t, &fakeSyncer{})
		assert.Empty(t, w.Snapshot())
		for _, uid := range []string{"e", "c", "a", "d", "b"} {
			w.Update(create(newTestPod(uid)))
		}
		synctest.Wait()
		var uids []types.UID
		for _, st := range w.Snapshot() {
			uids = append(uids, st.UID)
			one, ok := w.State(st.UID)
			assert.True(t, ok)
			assert.Equal(t, one, st)
			assert.Equal(t, "ns", st.Namespace)
			assert.Equal(t, podworkers.Syncing, st.Phase)
		}
		assert.Equal(t, []types.UID{"a", "b", "c", "d", "e"}, uids)
		_, ok := w.State("unknown")
		assert.False(t, ok)
	})
}

// PW-10: only a pod whose termination has begun can be recreated.
func TestWorkers_RequestRecreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWorkers(t, &fakeSyncer{})
		assert.False(t, w.RequestRecreation("a"), "unknown")
		w.Update(create(newTestPod("a")))
		assert.False(t, w.RequestRecreation("a"), "syncing")
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{WaitUntilFinished: true}))
		assert.False(t, w.ForgetFinished("a", true), "desired and not recreated")
		assert.True(t, w.RequestRecreation("a"))
		assert.True(t, w.ForgetFinished("a", true))
		assert.False(t, w.ForgetFinished("a", true), "forgotten")
	})
}

// PW-12: IsRunning is called for terminal pods only, and what their Finish has to do
// keeps them from being forgotten.
func TestWorkers_TerminalPodBeforeRun(t *testing.T) {
	var queried []types.UID
	f := &fakeSyncer{isRunning: func(uid types.UID) bool {
		queried = append(queried, uid)
		return false
	}}
	w, err := podworkers.New(podworkers.Config{Syncer: f, Inspector: f})
	require.NoError(t, err)
	w.Update(create(newTestPod("running", phase(corev1.PodRunning))))
	w.Update(create(newTestPod("done", phase(corev1.PodSucceeded))))
	w.Update(create(newTestPod("deleted", phase(corev1.PodSucceeded), deleted(5))))
	assert.Equal(t, []types.UID{"done", "deleted"}, queried)
	for _, uid := range []types.UID{"done", "deleted"} {
		st, _ := w.State(uid)
		assert.Equal(t, podworkers.Terminated, st.Phase)
	}
	assert.Empty(t, w.SyncKnownPods(nil, true))
	assert.True(t, w.IsKnown("done"))
	assert.True(t, w.IsKnown("deleted"))
}
