package nodeshutdown

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// terminatePods terminates the pods group by group, until all periods are over or ctx is done.
func (r *Runner) terminatePods(ctx context.Context) {
	begun := time.Now()
	r.save(state{StartTime: begun})
	groups, _ := r.m.currentGroups()
	for i, pods := range groupPods(groups, r.pods.ActivePods()) {
		if len(pods) > 0 && ctx.Err() == nil {
			r.terminateGroup(ctx, groups[i], pods)
		}
	}
	if ctx.Err() != nil { // cancelled, or the agent stops
		return
	}
	r.save(state{StartTime: begun, EndTime: time.Now()})
	r.m.cfg.Logger.Info("pods terminated, the node can shut down", slog.Duration("duration", time.Since(begun)))
}

// terminateGroup terminates the pods of a group at once, and waits for them for its period.
func (r *Runner) terminateGroup(ctx context.Context, g Group, pods []*corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, g.Period)
	defer cancel()
	r.m.cfg.Logger.Info("terminating pods of a priority", slog.Int("fromPriority", int(g.Priority)), slog.Duration("period", g.Period), slog.Int("pods", len(pods)))
	termination := runtime.Termination{
		GracePeriod: max(g.Period, time.Second), Reason: podspec.ReasonNodeShutdown, Message: podspec.MessageNodeShutdown, Evicted: true,
	}
	var wg sync.WaitGroup
	for _, pod := range pods {
		wg.Go(func() {
			err := safe.Call(r.m.cfg.Logger, "evict pod", func() error { return r.pods.Evict(ctx, pod, termination) })
			if err != nil {
				r.m.cfg.Logger.Warn("pod has not terminated before the node shuts down", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
			}
		})
	}
	wg.Wait()
}
