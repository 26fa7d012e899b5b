package agent

import (
	"log/slog"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/safe"
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

// joinHooks returns hooks that call those of all observers. Joined functions are typed: the
// hooks of syncs and runtime calls are called often, and calls by reflection allocate.
func joinHooks(log *slog.Logger, observers []Hooks) (joined Hooks) {
	for i := range observers {
		joined.add(log, &observers[i])
	}
	return joined
}

// observersAfter returns hooks that call first and then those of all observers.
func (c *Components) observersAfter(first Hooks) Hooks {
	return joinHooks(c.Logger, []Hooks{first, c.opts.hooks})
}

func (h *Hooks) add(log *slog.Logger, o *Hooks) {
	h.addPods(log, o)
	h.addRuntime(log, o)
	h.addReclaim(log, o)
}

func (h *Hooks) addPods(log *slog.Logger, o *Hooks) {
	h.Sources.SetReceived = safe.Hook4(log, "Sources.SetReceived", h.Sources.SetReceived, o.Sources.SetReceived)
	h.Sources.ChangeDelivered = safe.Hook3(log, "Sources.ChangeDelivered", h.Sources.ChangeDelivered, o.Sources.ChangeDelivered)
	h.Sources.SourceFailed = safe.Hook2(log, "Sources.SourceFailed", h.Sources.SourceFailed, o.Sources.SourceFailed)

	h.SyncLoop.IterationEnded = safe.Hook2(log, "SyncLoop.IterationEnded", h.SyncLoop.IterationEnded, o.SyncLoop.IterationEnded)
	h.SyncLoop.RuntimeReadyChanged = safe.Hook1(log, "SyncLoop.RuntimeReadyChanged", h.SyncLoop.RuntimeReadyChanged, o.SyncLoop.RuntimeReadyChanged)

	h.PodManager.Admitted = safe.Hook1(log, "PodManager.Admitted", h.PodManager.Admitted, o.PodManager.Admitted)
	h.PodManager.Adopted = safe.Hook1(log, "PodManager.Adopted", h.PodManager.Adopted, o.PodManager.Adopted)
	h.PodManager.Rejected = safe.Hook3(log, "PodManager.Rejected", h.PodManager.Rejected, o.PodManager.Rejected)

	h.Housekeeper.OrphanFound = safe.Hook1(log, "Housekeeper.OrphanFound", h.Housekeeper.OrphanFound, o.Housekeeper.OrphanFound)
	h.Housekeeper.StoreCleaned = safe.Hook3(log, "Housekeeper.StoreCleaned", h.Housekeeper.StoreCleaned, o.Housekeeper.StoreCleaned)

	h.PodWorkers.PhaseChanged = safe.Hook4(log, "PodWorkers.PhaseChanged", h.PodWorkers.PhaseChanged, o.PodWorkers.PhaseChanged)
	h.PodWorkers.SyncStarted = safe.HookContext(log, "PodWorkers.SyncStarted", h.PodWorkers.SyncStarted, o.PodWorkers.SyncStarted)
	h.PodWorkers.SyncEnded = safe.Hook5(log, "PodWorkers.SyncEnded", h.PodWorkers.SyncEnded, o.PodWorkers.SyncEnded)
	h.PodWorkers.PodFinished = safe.Hook1(log, "PodWorkers.PodFinished", h.PodWorkers.PodFinished, o.PodWorkers.PodFinished)
	h.PodWorkers.SyncPanicked = safe.Hook2(log, "PodWorkers.SyncPanicked", h.PodWorkers.SyncPanicked, o.PodWorkers.SyncPanicked)
}

func (h *Hooks) addRuntime(log *slog.Logger, o *Hooks) {
	h.PLEG.Relisted = safe.Hook4(log, "PLEG.Relisted", h.PLEG.Relisted, o.PLEG.Relisted)
	h.PLEG.Inspected = safe.Hook4(log, "PLEG.Inspected", h.PLEG.Inspected, o.PLEG.Inspected)
	h.PLEG.StreamChanged = safe.Hook2(log, "PLEG.StreamChanged", h.PLEG.StreamChanged, o.PLEG.StreamChanged)
	h.PLEG.RuntimeEventReceived = safe.Hook1(log, "PLEG.RuntimeEventReceived", h.PLEG.RuntimeEventReceived, o.PLEG.RuntimeEventReceived)
	h.PLEG.RuntimeEventsMissed = safe.Hook1(log, "PLEG.RuntimeEventsMissed", h.PLEG.RuntimeEventsMissed, o.PLEG.RuntimeEventsMissed)

	h.Status.Changed = safe.Hook3(log, "Status.Changed", h.Status.Changed, o.Status.Changed)
	h.Status.Sent = safe.Hook4(log, "Status.Sent", h.Status.Sent, o.Status.Sent)

	h.Probe.Probed = safe.Hook1(log, "Probe.Probed", h.Probe.Probed, o.Probe.Probed)

	h.CRI.Call = safe.Hook3(log, "CRI.Call", h.CRI.Call, o.CRI.Call)
	h.CRI.OperationStarted = safe.HookContext(log, "CRI.OperationStarted", h.CRI.OperationStarted, o.CRI.OperationStarted)
	h.CRI.OperationEnded = safe.Hook4(log, "CRI.OperationEnded", h.CRI.OperationEnded, o.CRI.OperationEnded)
}

func (h *Hooks) addReclaim(log *slog.Logger, o *Hooks) {
	h.Eviction.Measured = safe.Hook2(log, "Eviction.Measured", h.Eviction.Measured, o.Eviction.Measured)
	h.Eviction.Evicting = safe.Hook3(log, "Eviction.Evicting", h.Eviction.Evicting, o.Eviction.Evicting)
	h.Eviction.Evicted = safe.Hook4(log, "Eviction.Evicted", h.Eviction.Evicted, o.Eviction.Evicted)
	h.Eviction.ConditionsChanged = safe.Hook1(log, "Eviction.ConditionsChanged", h.Eviction.ConditionsChanged, o.Eviction.ConditionsChanged)

	h.ImageGC.Removed = safe.Hook4(log, "ImageGC.Removed", h.ImageGC.Removed, o.ImageGC.Removed)
	h.ImageGC.Collected = safe.Hook2(log, "ImageGC.Collected", h.ImageGC.Collected, o.ImageGC.Collected)
	h.ImageGC.RecordsLost = safe.Hook1(log, "ImageGC.RecordsLost", h.ImageGC.RecordsLost, o.ImageGC.RecordsLost)

	h.ContainerGC.Removed = safe.Hook3(log, "ContainerGC.Removed", h.ContainerGC.Removed, o.ContainerGC.Removed)
	h.ContainerGC.Collected = safe.Hook2(log, "ContainerGC.Collected", h.ContainerGC.Collected, o.ContainerGC.Collected)

	h.LogRotation.Rotated = safe.Hook4(log, "LogRotation.Rotated", h.LogRotation.Rotated, o.LogRotation.Rotated)
}
