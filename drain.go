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

// drainPods waits for the end and ends the pods' containers then, if that is the
// policy. The pods stay, so that the next agent starts them again.
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

// drainUnadoptedPods has workers take pods of our sources, to end them, that the loop
// had not come to when it was stopped.
func (a *Agent) drainUnadoptedPods(ctx context.Context) error {
	pods, err := a.runtime.Pods(ctx)
	if err != nil {
		return fmt.Errorf("look for pods that were not adopted yet: %w", err)
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
		// Nobody knows what it was: to be started again it must be new.
		a.workers.Update(podworkers.Update{Orphan: p})
	}
	return nil
}

// specs are the pods that a former process told of, as it knew them, and those that
// sources want.
func (a *Agent) specs() map[types.UID]*corev1.Pod {
	specs := map[types.UID]*corev1.Pod{}
	for _, pod := range append(a.statuses.Pods(), a.mux.Pods()...) {
		specs[pod.UID] = pod
	}
	return specs
}
