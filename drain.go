package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

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
	cfg := podworkers.DrainConfig{
		Workers: a.workers, Runtime: a.runtime,
		Pods: func() []*corev1.Pod { return append(a.statuses.Pods(), a.mux.Pods()...) },
	}
	for _, s := range a.sources {
		cfg.Sources = append(cfg.Sources, s.Name)
	}
	return podworkers.DrainPods(ctx, cfg)
}
