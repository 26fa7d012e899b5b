package agent

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/internal/run"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtimestate"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
	"github.com/sublet-dev/agent/volume"
)

// A Constructor returns a component of an agent. New calls it once; it does no I/O and starts nothing. It finds the components
// before its own in c, in the order of the fields of Components. Those after it are nil until New returns: a component that
// needs one keeps c and reads the field when it is called.
//
// A decorator calls the default constructor and wraps the result:
//
//	agent.WithPLEG(func(c *agent.Components) (agent.PLEG, error) {
//		p, err := agent.NewPLEG(c)
//		return countingPLEG{p}, err
//	})
type Constructor[T any] func(c *Components) (T, error)

// Components are the parts of an agent, in the order in which they are built.
type Components struct {
	NodeName string
	RootDir  string // exists and is locked from Run on
	Node     node.Config
	Logger   *slog.Logger
	Hooks    Hooks         // those of WithHooks, joined
	Owner    func() string // the id that marks what the agent creates; "" before Run

	Recorder       Recorder
	Runtime        Runtime
	RuntimeState   *runtimestate.Tracker // the PLEG reports to it
	Sources        *podsource.Mux
	Objects        Objects
	PodCache       *podcache.Cache // written by the PLEG
	PLEG           PLEG
	StatusManager  StatusManager
	Prober         Prober
	Volumes        Volumes
	Cgroups        Cgroups // nil: left to the runtime
	UserNamespaces UserNamespaces
	Syncer         Syncer
	ImageGC        ImageGC // nil: off
	PodWorkers     PodWorkers
	ContainerGC    ContainerGC // nil: the runtime cannot remove containers
	LogRotator     LogRotator  // nil: off, or the runtime cannot reopen logs
	Stats          Stats
	Eviction       Eviction // nil: off
	PodManager     *syncloop.PodManager
	SyncLoop       SyncLoop
	NodeStatus     *node.Status // what is reported about the node
	Operator       *podops.Operator
	Watchers       podwatch.Hub // what StatusManager sends to Agent.Watch

	options       *options
	adopt         []string         // sources of pods without an owner
	saved         *status.FileSink // statuses on disk, for the next process
	owner         owner.ID
	ephemeralRoot bool            // RootDir lasts as long as Run
	runners       []run.Component // of WithRunner
	drain         Runner          // nil: pods run on
}

// The interfaces of the components have what the other components call, and Run, which blocks until ctx is done, returns nil
// then, and owns every goroutine. The packages of the embedded interfaces say what each method promises.
type (
	// Runtime is the container runtime. *cri.Client is one. What a runtime can do in addition is documented at runtime.Capability.
	Runtime interface {
		pleg.Runtime
		podsync.Runtime
		probe.Execer
		runtimestate.Runtime
	}
	// PLEG observes the pods in the runtime and writes them to the PodCache. It reports each relist and inspection to the
	// RuntimeState. *pleg.Generator is one.
	PLEG interface {
		podsync.Inspector
		podworkers.Inspector
		podworkers.Observer
		syncloop.Inspector
		syncloop.Events
		InspectionErrors() []pleg.InspectionError
		Healthy() error
		Run(ctx context.Context) error
	}
	// StatusManager generates, stores and sends statuses. *status.Manager is one.
	StatusManager interface {
		podsync.Statuses
		syncloop.Statuses
		Pods() []*corev1.Pod
		PodUIDs() []types.UID
		IsRestored(uid types.UID) bool
		Restore(pods ...*corev1.Pod)
		// Resend sends the pod's status again, for example because a sink lost it.
		Resend(uid types.UID)
		Run(ctx context.Context) error
	}
	// Prober runs the probes of containers. *probe.Manager is one.
	Prober interface {
		podsync.Probes
		syncloop.ProbeResults
		syncloop.Probes
		Run(ctx context.Context) error
	}
	// Volumes mounts volumes. *volume.Manager is one.
	Volumes interface {
		podsync.Volumes
		stats.LocalVolumes
	}
	// Cgroups creates the cgroups of pods. *cgroup.Manager is one.
	Cgroups interface {
		podsync.Cgroups
		stats.PodCgroups
		PodsCgroup() string
		PodUIDs() ([]types.UID, error)
	}
	// UserNamespaces reserves id ranges for pods. *userns.Allocator is one.
	UserNamespaces = podsync.UserNamespaces
	// Objects finds the ConfigMaps and Secrets of pods.
	Objects = podspec.Objects
	// Syncer executes the transactions of a pod. *podsync.Syncer is one.
	Syncer interface {
		podworkers.Syncer
		stats.PodDirs
		ListPodsFromDisk() ([]types.UID, error)
		CleanupOrphan(ctx context.Context, uid types.UID) error
	}
	// PodWorkers runs the lifecycle of each pod. *podworkers.Workers is one.
	PodWorkers interface {
		syncloop.Workers
		syncloop.LoopWorkers
		syncloop.HousekeeperWorkers
		podworkers.DrainWorkers
		podworkers.EvictorWorkers
		containergc.PodWorkers
		RequestKill(uid types.UID, k podworkers.KillOptions)
		Run(ctx context.Context) error
	}
	// ImageGC removes unused images. *imagegc.Collector is one.
	ImageGC interface {
		eviction.Reclaimer
		imagegc.Leaser
		Restore(pods ...*corev1.Pod)
		Explain(ctx context.Context, all bool) ([]imagegc.Decision, error)
		Run(ctx context.Context) error
	}
	// ContainerGC removes exited containers and logs. *containergc.Collector is one.
	ContainerGC interface {
		eviction.Reclaimer
		RequestCollection()
		RequestCollectionFor(pod runtime.Pod)
		Explain(ctx context.Context) ([]containergc.Removal, error)
		Run(ctx context.Context) error
	}
	// LogRotator bounds the logs of running containers. *logrotate.Rotator is one.
	LogRotator interface {
		Run(ctx context.Context) error
	}
	// Stats measures the node and its pods. *stats.Provider is one.
	Stats interface {
		eviction.UsageProvider
		eviction.NodeUsageProvider // found by assertion: a decorator must not lose it
		eviction.DiskUsageRefresher
		Summary(ctx context.Context, nodeName string, pods []*corev1.Pod) (stats.Summary, error)
		CPUAndMemoryStats(ctx context.Context, nodeName string, pods []*corev1.Pod) (stats.Summary, error)
		Run(ctx context.Context) error
	}
	// Eviction evicts pods under pressure, and rejects new ones. *eviction.Manager is one.
	Eviction interface {
		syncloop.Admitter
		UnderPressure() bool
		Conditions() []corev1.NodeCondition
		Run(ctx context.Context) error
	}
	// SyncLoop merges everything that concerns a pod. *syncloop.Loop is one.
	SyncLoop interface {
		Healthy() error
		Run(ctx context.Context) error
	}
	// Recorder records Kubernetes events. Record must not block.
	Recorder interface {
		Record(event *corev1.Event)
	}
	// Runner is a component of the program's own that the agent runs. See WithRunner.
	Runner interface {
		Run(ctx context.Context) error
	}
)

// Hooks is an observer: functions that the components call when something has happened. Packages prom and otel have hooks for
// metrics and traces. Each function may be nil, is called synchronously and must not block.
type Hooks struct {
	Sources     podsource.Hooks
	SyncLoop    syncloop.Hooks
	PodManager  syncloop.PodManagerHooks
	Housekeeper syncloop.HousekeeperHooks
	PodWorkers  podworkers.Hooks
	PodSync     podsync.Hooks
	Cgroups     cgroup.Hooks
	Volumes     volume.Hooks
	PLEG        pleg.Hooks
	Status      status.Hooks
	Probe       probe.Hooks
	Eviction    eviction.Hooks
	ImageGC     imagegc.Hooks
	ContainerGC containergc.Hooks
	LogRotation logrotate.Hooks
	CRI         cri.Hooks // calls of the runtime that the agent itself connects to
}

// join returns hooks that call those of h and then those of next.
func (h Hooks) join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Sources:     h.Sources.Join(log, next.Sources),
		SyncLoop:    h.SyncLoop.Join(log, next.SyncLoop),
		PodManager:  h.PodManager.Join(log, next.PodManager),
		Housekeeper: h.Housekeeper.Join(log, next.Housekeeper),
		PodWorkers:  h.PodWorkers.Join(log, next.PodWorkers),
		PodSync:     h.PodSync.Join(log, next.PodSync),
		Cgroups:     h.Cgroups.Join(log, next.Cgroups),
		Volumes:     h.Volumes.Join(log, next.Volumes),
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
