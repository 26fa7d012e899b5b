package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// drainPods waits until ctx is done and then terminates the containers of all pods, if
// that is the policy. The pods stay desired, so the next agent starts them again.
func (a *Agent) drainPods(ctx context.Context) error {
	<-ctx.Done()
	if !a.shutdown.Drain {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if a.shutdown.DrainTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.shutdown.DrainTimeout)
		defer cancel()
	}
	err := errors.Join(a.drainUnadoptedPods(ctx), a.workers.Drain(ctx, podworkers.KillOptions{Drained: true}))
	if err != nil {
		return fmt.Errorf("drain pods: %w", err)
	}
	return nil
}

// drainUnadoptedPods hands workers the running pods of this agent's sources that the
// sync loop had not adopted when it was stopped, to terminate them.
func (a *Agent) drainUnadoptedPods(ctx context.Context) error {
	pods, err := a.runtime.Pods(ctx)
	if err != nil {
		return fmt.Errorf("list pods that are not adopted yet: %w", err)
	}
	specs := a.specs()
	for i := range pods {
		p := &pods[i]
		ours := func(s podsource.NamedSource) bool { return len(p.Sandboxes) > 0 && p.Sandboxes[0].Source == s.Name }
		if !slices.ContainsFunc(a.sources, ours) || a.workers.IsKnown(p.UID) {
			continue
		}
		if pod := specs[p.UID]; pod != nil {
			a.workers.Update(podworkers.Update{Type: podworkers.PodCreate, Pod: pod, Kill: &podworkers.KillOptions{Drained: true}})
			continue
		}
		// Its spec is unknown: it can only be started again as a new pod.
		a.workers.Update(podworkers.Update{Orphan: p})
	}
	return nil
}

// specs returns the pods of restored statuses, and the desired ones, by UID.
func (a *Agent) specs() map[types.UID]*corev1.Pod {
	specs := map[types.UID]*corev1.Pod{}
	for _, pod := range append(a.statuses.Pods(), a.mux.Pods()...) {
		specs[pod.UID] = pod
	}
	return specs
}
