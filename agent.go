package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/dirlock"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/run"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtimestate"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
)

// Runtime is what the agent requires of a container runtime: the union of what its
// components require. *cri.Client is one. What a runtime can do in addition is
// documented at runtime.Capability.
type Runtime interface {
	pleg.Runtime
	podsync.Runtime
	probe.Execer
	runtimestate.Runtime
}

// Recorder records Kubernetes events. Record must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Agent is a node agent: the assembled components. Its methods can be called from any
// goroutine at any time.
type Agent struct {
	settings

	started  atomic.Bool
	owner    atomic.Pointer[string]
	mux      *podsource.Mux
	lookup   podspec.Objects
	cache    podcache.Cache
	pleg     *pleg.Generator
	ready    *runtimestate.Tracker
	statuses *status.Manager
	saved    *status.FileSink // statuses on disk, for the next process
	probes   *probe.Manager
	syncer   *podsync.Syncer
	workers  *podworkers.Workers
	pods     *syncloop.PodManager
	loop     *syncloop.Loop
	gcState
}

// New assembles an agent. It checks everything that can be checked and reports all
// errors at once. It changes nothing on the node and starts nothing.
func New(opts ...Option) (*Agent, error) {
	a := new(Agent)
	var errs []error
	for _, o := range opts {
		errs = append(errs, o(&a.settings))
	}
	errs = append(errs, a.setDefaults())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if err := a.assemble(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	return a, nil
}

// Run runs the agent until ctx is done and returns nil after a clean stop. Pods
// keep running unless the shutdown policy is to drain. Run creates and locks the root
// directory first, and restores what an earlier agent left there and in the runtime.
func (a *Agent) Run(ctx context.Context) (err error) {
	if a.started.Swap(true) {
		return ErrAlreadyRun
	}
	if err := os.MkdirAll(a.rootDir, 0o700); err != nil {
		return fmt.Errorf("create root directory: %w", err)
	}
	release, err := dirlock.Acquire(a.rootDir)
	if err != nil {
		return err
	}
	defer release()
	if a.ephemeralRoot {
		defer func() { err = errors.Join(err, os.RemoveAll(a.rootDir)) }()
	}
	if err := a.own(); err != nil {
		return err
	}
	previous, err := a.saved.Load()
	if err != nil {
		a.logger.Warn("reading statuses of the previous process failed", logattr.Err(err))
	}
	a.statuses.Restore(previous...)
	if a.images != nil {
		a.images.Restore(previous...)
	}
	a.logCapabilities()
	disconnect, err := a.connect()
	if disconnect != nil {
		defer func() { err = errors.Join(err, disconnect()) }()
	}
	if err != nil {
		return err
	}
	return run.Stages(ctx,
		[]run.Component{{Name: "podsource", Run: a.mux.Run}},
		a.reclaimParts(),
		[]run.Component{{Name: "syncloop", Run: a.loop.Run}},
		[]run.Component{{Name: "drain", Run: a.drainPods}},
		[]run.Component{{Name: "podworkers", Run: a.workers.Run}},
		[]run.Component{{Name: "probe", Run: a.probes.Run}},
		[]run.Component{{Name: "pleg", Run: a.pleg.Run}},
		[]run.Component{{Name: "status", Run: a.statuses.Run}},
	)
}

// SourceErrors returns the current errors of manifests and sources.
func (a *Agent) SourceErrors() []podsource.SourceError { return a.mux.Errors() }

// Object returns a ConfigMap or Secret that came with the pods, or that a place of
// WithObjects has.
func (a *Agent) Object(ctx context.Context, ref podspec.Ref) (podspec.Object, error) {
	return a.lookup.Object(ctx, ref)
}

// podKiller requests the termination of a pod from its worker, for podsync.
type podKiller struct{ a *Agent }

func (e podKiller) RequestKill(uid types.UID, t runtime.Termination) {
	e.a.workers.RequestKill(uid, podworkers.KillOptions{Termination: t})
}

func (a *Agent) path(name string) string { return filepath.Join(a.rootDir, name) }
