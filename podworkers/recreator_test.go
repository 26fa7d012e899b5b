package podworkers_test

import (
	"context"
	"errors"
	"testing"

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
	w := &recreatedWorkers{}
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
