package podworkers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Recreator restarts pods through their workers.
type Recreator struct{ Workers RecreatorWorkers }

// RecreatorWorkers are the workers of the pods. See Workers.
type RecreatorWorkers interface {
	RequestKill(uid types.UID, k KillOptions)
	RequestRecreation(uid types.UID) bool
}

// Recreate terminates the pod, which stays desired, and has it started again when it has
// finished. It waits until the pod has terminated or ctx is done. The error for an unknown
// pod wraps runtime.ErrNotFound.
func (r Recreator) Recreate(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	terminated := make(chan error, 1)
	r.Workers.RequestKill(pod.UID, KillOptions{Termination: t, Done: func(err error) { terminated <- err }})
	if !r.Workers.RequestRecreation(pod.UID) { // its termination has begun, or it is unknown
		return fmt.Errorf("recreate pod %s: %w", pod.UID, runtime.ErrNotFound)
	}
	select {
	case err := <-terminated:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for termination of pod %s: %w", pod.UID, context.Cause(ctx))
	}
}
