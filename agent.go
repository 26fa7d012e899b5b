package agent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/dirlock"
	"github.com/sublet-dev/agent/internal/lazycri"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/internal/run"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podwatch"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtimestate"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/syncloop"
)

// Errors of New, Run and Healthy, which wrap them, for callers that branch on them.
var (
	// ErrNoRuntime: no option says where pods run.
	ErrNoRuntime = errors.New("no runtime; give WithRuntimeEndpoint for the CRI socket of a real one, " +
		"WithRuntime for one of your own or an embedded one with host processes, or WithSimulatedRuntime for pods that do not really run")
	// ErrAlreadyRun: Run was called before.
	ErrAlreadyRun = errors.New("an agent runs once")
	// ErrRootInUse: another agent has the root directory. The error names its process.
	ErrRootInUse = dirlock.ErrInUse
	// ErrOwnerID: the root directory has or had pods, but the id of their owner cannot be read. The error says what to do.
	ErrOwnerID = owner.ErrNoID
	// ErrComponentExited: a component returned before it was asked to.
	ErrComponentExited = run.ErrExited
	// ErrRuntimeNotReady: the runtime does not answer or says that it is not ready.
	ErrRuntimeNotReady = syncloop.ErrRuntimeNotReady
	// ErrNetworkNotReady: the network of the runtime is not ready. Pods on the host's network run.
	ErrNetworkNotReady = runtimestate.ErrNetworkNotReady
	// ErrPodsNotListed: the pods in the runtime are not known yet. ErrRuntimeNotReady is wrapped as well.
	ErrPodsNotListed = runtimestate.ErrPodsNotListed
	// ErrStalled: changes of pods are not handled any more.
	ErrStalled = syncloop.ErrStalled
)

// Agent is a node agent: the assembled components. Its methods, which include those of its Operator, can be called from any
// goroutine at any time.
type Agent struct {
	*podops.Operator // the pods and what can be done with one: Pods, Logs, Exec, Restart, Evict, Drain, ...

	c *Components

	started, connected atomic.Bool // by Run: at its begin, and to the runtime
}

// New assembles an agent. It checks everything that can be checked and reports all errors at once. It changes nothing on the
// node and starts nothing.
func New(opts ...Option) (*Agent, error) {
	var o options
	var errs []error
	for _, option := range opts {
		errs = append(errs, option(&o))
	}
	c, err := o.complete()
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if err := c.build(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	return &Agent{Operator: c.Operator, c: c}, nil
}

// Run runs the agent until ctx is done and returns nil after a clean stop. Pods keep running unless podworkers.DrainConfig is
// configured. Run creates and locks the root directory first, and restores what an earlier agent left there and in the runtime.
func (a *Agent) Run(ctx context.Context) (err error) {
	if a.started.Swap(true) {
		return ErrAlreadyRun
	}
	c := a.c
	release, err := dirlock.Acquire(c.RootDir)
	if err != nil {
		return err
	}
	defer release()
	if c.ephemeralRoot {
		defer func() {
			err = errors.Join(err, podsync.CleanupOrphans(context.WithoutCancel(ctx), c.Syncer), os.RemoveAll(c.RootDir))
		}()
	}
	if err := c.owner.LoadOrCreate(c.RootDir, c.path(podsDirName), len(c.adopt) > 0); err != nil {
		return err
	}
	previous, err := c.saved.Load()
	if err != nil {
		c.Logger.Warn("reading statuses of the previous process failed", logattr.Err(err))
	}
	c.StatusManager.Restore(previous...)
	c.Sources.Restore(previous...)
	if c.ImageGC != nil {
		c.ImageGC.Restore(previous...)
	}
	if unmet := runtime.Unmet(c.Runtime, allNeeds()...); len(unmet) > 0 {
		c.Logger.Info("runtime lacks capabilities", slog.Any("off", unmet))
	}
	disconnect, err := lazycri.Connect(c.Runtime, c.Owner(), c.adopt)
	if disconnect != nil {
		defer func() { err = errors.Join(err, disconnect()) }()
	}
	if err != nil {
		return err
	}
	a.connected.Store(true)
	return run.Stages(ctx,
		run.Of("podsource", c.Sources),
		slices.Concat(run.Of("imagegc", c.ImageGC), run.Of("containergc", c.ContainerGC), run.Of("logrotate", c.LogRotator), run.Of("stats", c.Stats), run.Of("eviction", c.Eviction)),
		run.Of("syncloop", c.SyncLoop),
		run.Of("drain", c.drain),
		run.Of("podworkers", c.PodWorkers),
		run.Of("probe", c.Prober),
		run.Of("pleg", c.PLEG),
		append(run.Of("status", c.StatusManager), c.runners...),
	)
}

// Components returns the components of the agent, which uses the result itself: it must not be changed.
func (a *Agent) Components() *Components { return a.c }

// Healthy returns nil if the agent works, its runtime answers and it is known what should run, else all that is wrong. A source
// that is waited for is a podsource.Unsynced in it; one whose pods are known from its cache is not: see podsource.Cached.
func (a *Agent) Healthy() error {
	return errors.Join(a.c.SyncLoop.Healthy(), a.c.PLEG.Healthy(), a.c.runtimeHealthy(), a.c.Sources.Healthy())
}

// SourceErrors returns the current errors of manifests and sources.
func (a *Agent) SourceErrors() []podsource.SourceError { return a.c.Sources.Errors() }

// InspectionErrors returns the pods that the runtime fails to inspect. They leave the agent healthy, and other pods run on.
func (a *Agent) InspectionErrors() []pleg.InspectionError { return a.c.PLEG.InspectionErrors() }

// Watch yields the pods that there are and then their changes, until ctx is done. A slow caller gets the newest states, and how
// many it has missed. See podwatch.Hub.Watch.
func (a *Agent) Watch(ctx context.Context) iter.Seq[podwatch.Event] { return a.c.Watchers.Watch(ctx) }

// PodProblems returns the desired pods that the node has rejected or evicted. They leave the agent healthy.
func (a *Agent) PodProblems() []syncloop.PodProblem { return a.c.PodManager.Problems() }

// Problems returns all that is wrong with what the node should run: SourceErrors, PodProblems and InspectionErrors.
func (a *Agent) Problems() []syncloop.Problem {
	return syncloop.Problems(a.SourceErrors(), a.PodProblems(), a.InspectionErrors(), a.Pods)
}

// NodeStatus returns the status of the node as the Node object of a cluster has it: capacity, conditions, addresses, images and
// what the machine tells about itself. The error says what could not be found out and is left out.
func (a *Agent) NodeStatus(ctx context.Context) (corev1.NodeStatus, error) {
	return run.While(&a.connected, func() (corev1.NodeStatus, error) { return a.c.NodeStatus.At(ctx, time.Now()) })
}

// Conditions returns the node's conditions: those of pressure, those of node.Config.ConditionReporters, and Ready.
func (a *Agent) Conditions() []corev1.NodeCondition { return a.c.NodeStatus.Conditions() }

// Stats measures the node and its pods now. The usage of logs and volumes is a minute old at most, or left out if it takes long.
func (a *Agent) Stats(ctx context.Context) (stats.Summary, error) {
	return run.While(&a.connected, func() (stats.Summary, error) { return a.c.Stats.Summary(ctx, a.c.NodeName, a.Pods()) })
}

// CPUAndMemoryStats is Stats of CPU time, memory and swap only. It is cheap: no disks are measured, and no files counted.
func (a *Agent) CPUAndMemoryStats(ctx context.Context) (stats.Summary, error) {
	return run.While(&a.connected, func() (stats.Summary, error) { return a.c.Stats.CPUAndMemoryStats(ctx, a.c.NodeName, a.Pods()) })
}

// ExplainImages returns what image garbage collection would do with each image now, and why: see imagegc.Collector.Explain.
func (a *Agent) ExplainImages(ctx context.Context, all bool) ([]imagegc.Decision, error) {
	if a.c.ImageGC == nil {
		return nil, nil
	}
	return run.While(&a.connected, func() ([]imagegc.Decision, error) { return a.c.ImageGC.Explain(ctx, all) })
}

// ExplainContainers returns what container garbage collection would remove now: see containergc.Collector.Explain.
func (a *Agent) ExplainContainers(ctx context.Context) ([]containergc.Removal, error) {
	if a.c.ContainerGC == nil {
		return nil, nil
	}
	return run.While(&a.connected, func() ([]containergc.Removal, error) { return a.c.ContainerGC.Explain(ctx) })
}
