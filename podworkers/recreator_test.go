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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// recreatedWorkers know one pod, whose termination ends with err, or never.
type recreatedWorkers struct {
	err      error
	never    bool
	requests []string
	states   []podworkers.State // after the termination, one a query; then unknown
}

func (w *recreatedWorkers) State(types.UID) (podworkers.State, bool) {
	if len(w.states) == 0 {
		return podworkers.State{}, false
	}
	st := w.states[0]
	w.states = w.states[1:]
	return st, true
}

func (w *recreatedWorkers) RequestKill(uid types.UID, k podworkers.KillOptions) {
	w.requests = append(w.requests, "kill "+string(uid))
	if !w.never && k.Drained {
		k.Done(w.err)
	}
}

func (w *recreatedWorkers) RequestRecreation(uid types.UID) bool {
	w.requests = append(w.requests, "recreate "+string(uid))
	return uid == "known"
}

// OP-8
func TestRecreator_Recreate(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "known"}}
	w := &recreatedWorkers{states: []podworkers.State{{Phase: podworkers.Syncing}}}
	require.NoError(t, podworkers.Recreator{Workers: w}.Recreate(t.Context(), pod, runtime.Termination{Drained: true}))
	assert.Equal(t, []string{"kill known", "recreate known"}, w.requests)

	w.err = errors.New("runtime failed")
	require.ErrorIs(t, podworkers.Recreator{Workers: w}.Recreate(t.Context(), pod, runtime.Termination{Drained: true}), w.err)

	w.never = true
	tired := errors.New("tired")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(tired)
	err := podworkers.Recreator{Workers: w}.Recreate(ctx, pod, runtime.Termination{Drained: true})
	require.ErrorIs(t, err, tired)
	require.EqualError(t, err, "wait for termination of pod known: tired")

	pod.UID = "unknown"
	require.ErrorIs(t, podworkers.Recreator{Workers: w}.Recreate(t.Context(), pod, runtime.Termination{Drained: true}), runtime.ErrNotFound)
}

// OP-8: a restart is complete when the new pod has a worker, so that what is requested next
// is for that pod. One that is not started again is not waited for.
func TestRecreator_WaitsForStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "known"}}
		terminated, finished := podworkers.State{Phase: podworkers.Terminated, Recreate: true}, podworkers.State{Phase: podworkers.Finished, Recreate: true}
		restart := func(ctx context.Context, states ...podworkers.State) (time.Duration, error) {
			start := time.Now()
			err := podworkers.Recreator{Workers: &recreatedWorkers{states: states}}.Recreate(ctx, pod, runtime.Termination{Drained: true})
			return time.Since(start), err
		}
		took, err := restart(t.Context(), terminated, finished, podworkers.State{Phase: podworkers.Syncing})
		require.NoError(t, err)
		assert.Equal(t, 40*time.Millisecond, took)
		took, err = restart(t.Context(), terminated, finished, podworkers.State{Phase: podworkers.Finished})
		require.NoError(t, err)
		assert.Equal(t, 40*time.Millisecond, took, "it does not start by its policy, and has finished meanwhile")
		took, err = restart(t.Context(), terminated)
		require.NoError(t, err)
		assert.Equal(t, 5*time.Second, took, "after it was forgotten")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = restart(ctx)
		require.EqualError(t, err, "wait for the start of pod known: context deadline exceeded")
	})
}
