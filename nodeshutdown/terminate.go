package nodeshutdown

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// killTime is for pods that are killed when the last period ends: the machine must not stop the runtime meanwhile.
const killTime = 10 * time.Second

// terminatePods terminates the pods group by group, until all have finished, all periods and killTime are over, or ctx is done.
func (r *Runner) terminatePods(ctx context.Context) {
	begun := time.Now()
	r.save(state{StartTime: begun})
	groups, _ := r.m.currentGroups()
	evictions, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i, pods := range groupPods(groups, r.pods.ActivePods()) {
		if len(pods) > 0 && ctx.Err() == nil {
			r.terminateGroup(evictions, groups[i], pods, &all)
		}
	}
	defer time.AfterFunc(killTime, func() { cancel(errTooLong) }).Stop()
	all.Wait()
	if ctx.Err() != nil { // cancelled, or the agent stops
		return
	}
	r.save(state{StartTime: begun, EndTime: time.Now()})
	r.m.cfg.Logger.Info("pods terminated, the node can shut down", slog.Duration("duration", time.Since(begun)))
}

var errTooLong = fmt.Errorf("still there %v after all periods", killTime)

// terminateGroup terminates the pods of a group at once, and waits for them for its period. all is done when none of them is
// waited for any more.
func (r *Runner) terminateGroup(ctx context.Context, g Group, pods []*corev1.Pod, all *sync.WaitGroup) {
	r.m.cfg.Logger.Info("terminating pods of a priority", slog.Int("fromPriority", int(g.Priority)), slog.Duration("period", g.Period), slog.Int("pods", len(pods)))
	termination := runtime.Termination{
		GracePeriod: max(g.Period, time.Second), Reason: podspec.ReasonNodeShutdown, Message: podspec.MessageNodeShutdown, Evicted: true,
	}
	var group sync.WaitGroup
	for _, pod := range pods {
		group.Add(1)
		all.Go(func() {
			defer group.Done()
			err := safe.Call(r.m.cfg.Logger, "evict pod", func() error { return r.pods.Evict(ctx, pod, termination) })
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			r.m.cfg.Logger.Warn("pod has not terminated before the node shuts down", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
		})
	}
	finished := make(chan struct{})
	go func() { group.Wait(); close(finished) }()
	period := time.NewTimer(g.Period)
	defer period.Stop()
	select {
	case <-finished:
	case <-period.C:
	}
}
