package main

import (
	"flag"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/nodeshutdown"
	"github.com/sublet-dev/agent/nodeshutdown/logind"
	"github.com/sublet-dev/agent/podworkers"
)

// shutdownFlags are about the shutdown of the machine, in the style of the kubelet's, which has them in its configuration only.
type shutdownFlags struct {
	period, criticalPeriod time.Duration
	manager                *nodeshutdown.Manager // of options; nil: pods are not terminated
}

func (f *shutdownFlags) define(fs *flag.FlagSet) {
	fs.DurationVar(&f.period, "shutdown-grace-period", 0, "when the machine shuts down, terminate pods within this time by a lock of systemd-logind; 0: leave them to systemd")
	fs.DurationVar(&f.criticalPeriod, "shutdown-grace-period-critical-pods", 0, "the part of -shutdown-grace-period that is for critical pods, which are terminated last")
}

// options returns what terminates pods before the machine shuts down, and completes the description of the node.
func (f *shutdownFlags) options(all *flags, s *kubeletconfig.Settings, log *slog.Logger) ([]agent.Option, error) {
	if len(s.Shutdown) == 0 {
		return nil, nil
	}
	m, err := nodeshutdown.New(nodeshutdown.Config{
		Groups: s.Shutdown, Dial: logind.Dial, StateFile: filepath.Join(all.rootDir, "node-shutdown.json"), NodeName: all.nodeName, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	f.manager = m
	s.Node.ReadyChecks = append(s.Node.ReadyChecks, node.Check(m.Check))
	return []agent.Option{
		agent.WithAdmitter(m),
		agent.WithRunner("node shutdown", func(c *agent.Components) (agent.Runner, error) {
			return m.Runner(podworkers.Evictor{Workers: c.PodWorkers, Statuses: c.StatusManager}, c.Recorder), nil
		}),
	}, nil
}
