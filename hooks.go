package agent

import (
	"log/slog"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
)

// Hooks is an observer: functions that the components call when something has happened.
// Packages prom and otel have hooks for metrics and traces. Each function may be nil, is
// called synchronously and must not block.
type Hooks struct {
	Sources     podsource.Hooks
	SyncLoop    syncloop.Hooks
	PodManager  syncloop.PodManagerHooks
	Housekeeper syncloop.HousekeeperHooks
	PodWorkers  podworkers.Hooks
	PLEG        pleg.Hooks
	Status      status.Hooks
	Probe       probe.Hooks
	Eviction    eviction.Hooks
	ImageGC     imagegc.Hooks
	ContainerGC containergc.Hooks
	LogRotation logrotate.Hooks
	CRI         cri.Hooks // calls of the runtime that the agent itself connects to
}

// WithHooks adds an observer. All observers are called, in the order of the options and
// side by side: a panic of one is logged and keeps neither the others nor the agent from
// their work. Hooks that derive a context get the one that the previous observer returned.
func WithHooks(h Hooks) Option {
	return func(s *settings) error {
		s.observers = append(s.observers, h)
		return nil
	}
}

// observersAfter returns hooks that call first and then those of all observers.
func (c *Components) observersAfter(first Hooks) Hooks {
	return Hooks{}.join(c.Logger, first).join(c.Logger, c.opts.hooks)
}

// join returns hooks that call those of h and then those of next.
func (h Hooks) join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Sources:     h.Sources.Join(log, next.Sources),
		SyncLoop:    h.SyncLoop.Join(log, next.SyncLoop),
		PodManager:  h.PodManager.Join(log, next.PodManager),
		Housekeeper: h.Housekeeper.Join(log, next.Housekeeper),
		PodWorkers:  h.PodWorkers.Join(log, next.PodWorkers),
		PLEG:        h.PLEG.Join(log, next.PLEG),
		Status:      h.Status.Join(log, next.Status),
		Probe:       h.Probe.Join(log, next.Probe),
		Eviction:    h.Eviction.Join(log, next.Eviction),
		ImageGC:     h.ImageGC.Join(log, next.ImageGC),
		ContainerGC: h.ContainerGC.Join(log, next.ContainerGC),
		LogRotation: h.LogRotation.Join(log, next.LogRotation),
		CRI:         h.CRI.Join(log, next.CRI),
	}
}
