package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/status"
)

// statusDir writes each pod with its status into a directory.
func statusDir(dir string, log *slog.Logger) ([]agent.Option, error) {
	sink, err := status.NewFileSink(dir)
	if err != nil {
		return nil, fmt.Errorf("-status-dir: %w", err)
	}
	return []agent.Option{agent.WithStatusSink(sink), agent.WithRunner("status-dir", func(c *agent.Components) (agent.Runner, error) {
		return oldStatuses{sink, c.StatusManager, log}, nil
	})}, nil
}

// oldStatuses are the files that the previous process has left. The agent removes those of pods that no source contains
// any more, if it knows of them. Of a pod that never had a container it may not: that status is kept in the root directory a little
// later. All others are there, and what is only here belongs to another root directory: how its pods ended is none of this agent's business.
type oldStatuses struct {
	sink     *status.FileSink
	statuses interface{ Restore(pods ...*corev1.Pod) }
	log      *slog.Logger
}

// Run implements agent.Runner.
func (o oldStatuses) Run(ctx context.Context) error {
	pods, err := o.sink.Load()
	if err != nil {
		o.log.Warn("reading -status-dir failed", logattr.Err(err))
	}
	o.statuses.Restore(slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return pod.Status.Phase != corev1.PodPending })...)
	<-ctx.Done()
	return nil
}
