package main

import (
	"log/slog"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/oomwatch"
	"github.com/sublet-dev/agent/podcache"
)

// oomOptions returns what reports processes that the kernel kills for want of memory. Simulated pods have none.
func (f *flags) oomOptions(log *slog.Logger) []agent.Option {
	if f.runtimeEndpoint == "" {
		return nil
	}
	return []agent.Option{agent.WithRunner("oom watcher", func(c *agent.Components) (agent.Runner, error) {
		return oomwatch.New(oomwatch.Config{
			NodeName: c.NodeName, Pods: c.StatusManager, Runtime: podcache.Lister{Cache: c.PodCache}, Recorder: c.Recorder, Logger: log,
		})
	})}
}
