package podworkers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// Recreator restarts pods through their workers.
type Recreator struct{ Workers RecreatorWorkers }

// RecreatorWorkers are the workers of the pods. See Workers.
type RecreatorWorkers interface {
	RequestKill(uid types.UID, k KillOptions)
	RequestRecreation(uid types.UID) bool
	State(uid types.UID) (State, bool)
}

const (
	recreationPollPeriod = 20 * time.Millisecond
	// recreationTimeout is how long a pod may have no worker before it counts as one that is
	// not started again: its source has removed it, or the node has rejected it.
	recreationTimeout = 5 * time.Second
)

// Recreate terminates the pod, which stays desired, and has it started again when it has
// finished. It waits until the worker of the new pod exists, so that a later request is for
// that one, or until ctx is done. The error for an unknown pod wraps runtime.ErrNotFound.
func (r Recreator) Recreate(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	terminated := make(chan error, 1)
	r.Workers.RequestKill(pod.UID, KillOptions{Termination: t, Done: func(err error) { terminated <- err }})
	if !r.Workers.RequestRecreation(pod.UID) { // its termination has begun, or it is unknown
		return fmt.Errorf("recreate pod %s: %w", pod.UID, runtime.ErrNotFound)
	}
	select {
	case err := <-terminated:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return fmt.Errorf("wait for termination of pod %s: %w", pod.UID, context.Cause(ctx))
	}
	return r.waitForStart(ctx, pod.UID)
}

// waitForStart waits for the worker of a pod whose containers have terminated.
func (r Recreator) waitForStart(ctx context.Context, uid types.UID) error {
	known := time.Now()
	for {
		switch st, ok := r.Workers.State(uid); {
		case ok && !st.Recreate: // the new one, which may have completed meanwhile
			return nil
		case ok:
			known = time.Now()
		case time.Since(known) >= recreationTimeout:
			return nil
		}
		if err := sleep.For(ctx, recreationPollPeriod); err != nil {
			return fmt.Errorf("wait for the start of pod %s: %w", uid, err)
		}
	}
}
