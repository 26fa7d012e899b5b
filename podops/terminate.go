package podops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// RestartContainer ends a running container within the grace period of its pod, and waits
// for that. The restart policy then starts it again; with a policy that does not, it stays
// ended. preStop hooks run.
func (o *Operator) RestartContainer(ctx context.Context, pod *corev1.Pod, container string) error {
	c, err := o.running(pod, container)
	if err != nil {
		return err
	}
	result := o.cfg.Runtime.Apply(ctx, pod, []runtime.Action{{
		Type: runtime.KillContainer, Container: c.Name, ContainerType: c.Type, ID: c.ID, GracePeriod: podspec.GracePeriod(pod),
		Reason: "RestartRequested", Message: fmt.Sprintf("Container %s is restarted by request", c.Name),
	}}, runtime.RunOptions{})
	if failure, failed := result.Failures[c.Name]; failed {
		return fmt.Errorf("restart container %q of pod %s: %w", c.Name, fullName(pod), failure.Err)
	}
	return nil
}

// Polls for the first status of a pod that was started again.
const (
	statusPollPeriod = 20 * time.Millisecond
	statusTimeout    = 10 * time.Second // after which the pod is not there to stay
)

// RestartPod terminates a pod within its grace period, sandbox included, waits for that,
// and has it started again. It returns when Pods has the new pod, whose containers may
// still have to start. Containers that have completed start again only if the restart
// policy says so.
func (o *Operator) RestartPod(ctx context.Context, pod *corev1.Pod) error {
	err := o.cfg.Workers.Recreate(ctx, pod, runtime.Termination{Drained: true})
	for start := time.Now(); err == nil && !o.has(pod.UID) && time.Since(start) < statusTimeout; {
		err = sleep.For(ctx, statusPollPeriod)
	}
	if err != nil {
		return fmt.Errorf("restart pod %s: %w", fullName(pod), err)
	}
	return nil
}

func (o *Operator) has(uid types.UID) bool {
	return slices.ContainsFunc(o.cfg.Pods(), func(pod *corev1.Pod) bool { return pod.UID == uid })
}

// EvictPod terminates a pod and waits until it has finished or ctx is done. It then is
// Failed with reason Evicted. A grace period of 0 is the pod's own, which is also the
// upper limit.
func (o *Operator) EvictPod(ctx context.Context, pod *corev1.Pod, gracePeriod time.Duration) error {
	return o.evict(ctx, pod, runtime.Termination{
		GracePeriod: gracePeriod, Reason: "Evicted", Message: "The pod was evicted by request", Evicted: true,
	})
}

func (o *Operator) evict(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	if err := o.cfg.Workers.Evict(ctx, pod, t); err != nil {
		return fmt.Errorf("evict pod %s: %w", fullName(pod), err)
	}
	return nil
}

// DrainOptions say which pods Drain evicts, and how.
type DrainOptions struct {
	// GracePeriod is the upper limit of the grace period. Default: each pod's own
	GracePeriod time.Duration
	// Filter returns whether a pod is evicted. Default: all are
	Filter func(pod *corev1.Pod) bool
}

// Drain evicts the pods of the node that have not ended, all at once, and waits until they
// have finished or ctx is done. Its error names those that have not. It does not prevent
// that further pods are added.
func (o *Operator) Drain(ctx context.Context, opts DrainOptions) error {
	var wg sync.WaitGroup
	pods := o.cfg.Pods()
	errs := make([]error, len(pods))
	for i, pod := range pods {
		if podspec.IsTerminalPhase(pod.Status.Phase) || opts.Filter != nil && !opts.Filter(pod) {
			continue
		}
		wg.Go(func() {
			errs[i] = o.evict(ctx, pod, runtime.Termination{
				GracePeriod: opts.GracePeriod, Reason: "Evicted", Message: "The node was drained by request", Evicted: true,
			})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
