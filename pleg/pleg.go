package pleg

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Runtime is the container runtime that a Generator inspects. Its methods are
// called concurrently and must return when their context ends.
type Runtime interface {
	// Pods lists all pods with ids, names, attempts and states.
	Pods(ctx context.Context) ([]runtime.Pod, error)
	// Pod inspects one pod. For a pod that does not exist it returns an empty Pod
	// and no error. If the Runtime implements runtime.ListedPodInspector, that is
	// called instead for pods that a relist is the first to find, or finds changed and
	// without something missing.
	Pod(ctx context.Context, uid types.UID) (runtime.Pod, error)
	// Watch calls onEvent with the UID of each pod that may have changed, until the
	// stream breaks or ctx ends. Its error wraps runtime.ErrUnsupported if the
	// runtime has no event stream. If the Runtime implements
	// runtime.TimestampedWatcher, WatchTimestamped is called instead.
	Watch(ctx context.Context, onEvent func(types.UID)) error
}

// Cache receives the results of inspections. Its methods must not block. Calls for
// one pod never overlap.
type Cache interface {
	// Set stores the result of an inspection that began at the given time.
	Set(uid types.UID, p runtime.Pod, err error, at time.Time)
	// Delete removes a pod that does not exist in the runtime any more.
	Delete(uid types.UID)
}

// ErrStopped is returned by GetNewerThan after Run has ended.
var ErrStopped = errors.New("pleg has stopped")

// Config configures a Generator. Runtime and Cache are required.
type Config struct {
	Runtime Runtime
	Cache   Cache

	RelistPeriod            time.Duration // without an event stream. Default: 1s
	EventedRelistPeriod     time.Duration // with an event stream. Default: 5m
	MaxDeferral             time.Duration // bounds how long a pod is not inspected while it is synced. Default: 1s
	MaxParallel             int           // concurrent inspections. Default: 10
	Timeout                 time.Duration // of a relist or an inspection. Default: 2m, because a runtime with many exited containers takes its time
	SlowInspectionThreshold time.Duration // slower inspections give their slot back. Default: 1s
	RelistThreshold         time.Duration // Healthy fails if no relist has succeeded for this long. Default: 3m
	StreamOpenAfter         time.Duration // a stream that has not failed for this long is open. Default: 1s
	StreamRetryPeriod       time.Duration // between attempts to open an unsupported stream. Default: 10m

	Logger *slog.Logger // Default: discard
	Hooks  Hooks
}

// Needs returns what precise times of runtime events depend on.
func (Config) Needs() []runtime.Need {
	times := runtime.NeedFor[runtime.TimestampedWatcher]("times of runtime events")
	times.Optional = true
	return []runtime.Need{times}
}

// Hooks are called by the Generator's goroutines. Each may be nil and must not
// block.
type Hooks struct {
	// Relisted: all pods were listed, and changed of them need an inspection.
	Relisted func(duration time.Duration, pods, changed int, err error)
	// Inspected: one pod was inspected, after waiting for a slot.
	Inspected func(uid types.UID, waited, duration time.Duration, err error)
	// StreamChanged: the event stream opened, or broke with err.
	StreamChanged func(open bool, err error)
	// RuntimeEventReceived: the event stream reported a pod.
	RuntimeEventReceived func(uid types.UID)
	// RuntimeEventsMissed: a relist found changed pods that the open event stream
	// had not reported.
	RuntimeEventsMissed func(pods int)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Relisted:             safe.Hook4(log, "PLEG.Relisted", h.Relisted, next.Relisted),
		Inspected:            safe.Hook4(log, "PLEG.Inspected", h.Inspected, next.Inspected),
		StreamChanged:        safe.Hook2(log, "PLEG.StreamChanged", h.StreamChanged, next.StreamChanged),
		RuntimeEventReceived: safe.Hook1(log, "PLEG.RuntimeEventReceived", h.RuntimeEventReceived, next.RuntimeEventReceived),
		RuntimeEventsMissed:  safe.Hook1(log, "PLEG.RuntimeEventsMissed", h.RuntimeEventsMissed, next.RuntimeEventsMissed),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		Relisted:             safe.Hook4(log, "Relisted", h.Relisted),
		Inspected:            safe.Hook4(log, "Inspected", h.Inspected),
		StreamChanged:        safe.Hook2(log, "StreamChanged", h.StreamChanged),
		RuntimeEventReceived: safe.Hook1(log, "RuntimeEventReceived", h.RuntimeEventReceived),
		RuntimeEventsMissed:  safe.Hook1(log, "RuntimeEventsMissed", h.RuntimeEventsMissed),
	}
}

// complete checks the configuration and sets the defaults.
func (c *Config) complete() error {
	var errs []error
	if c.Runtime == nil {
		errs = append(errs, errors.New("pleg: Config.Runtime: required"))
	}
	if c.Cache == nil {
		errs = append(errs, errors.New("pleg: Config.Cache: required"))
	}
	if c.MaxParallel < 0 {
		errs = append(errs, errors.New("pleg: Config.MaxParallel: must not be negative"))
	}
	if c.MaxParallel == 0 {
		c.MaxParallel = 10
	}
	for _, d := range []struct {
		name         string
		value        *time.Duration
		defaultValue time.Duration
	}{
		{"RelistPeriod", &c.RelistPeriod, time.Second},
		{"EventedRelistPeriod", &c.EventedRelistPeriod, 5 * time.Minute},
		{"MaxDeferral", &c.MaxDeferral, time.Second},
		{"Timeout", &c.Timeout, 2 * time.Minute},
		{"SlowInspectionThreshold", &c.SlowInspectionThreshold, time.Second},
		{"RelistThreshold", &c.RelistThreshold, 3 * time.Minute},
		{"StreamOpenAfter", &c.StreamOpenAfter, time.Second},
		{"StreamRetryPeriod", &c.StreamRetryPeriod, 10 * time.Minute},
	} {
		if *d.value < 0 {
			errs = append(errs, fmt.Errorf("pleg: Config.%s: must not be negative", d.name))
		}
		if *d.value == 0 {
			*d.value = d.defaultValue
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = c.Hooks.guarded(c.Logger)
	return errors.Join(errs...)
}

// Generator lists and inspects pods and emits an event for each change. Its
// methods may be called concurrently.
type Generator struct {
	cfg    Config
	seed   maphash.Seed
	notify chan struct{} // one slot: the backlog is not empty
	// listedInspector is nil if the Runtime is none.
	listedInspector runtime.ListedPodInspector
	relistCh        chan struct{} // one slot: relist at once

	// mu guards the fields below. No I/O and no callback runs under it.
	mu        sync.Mutex
	ctx       context.Context // of Run; inspections outlive the calls that request them
	started   bool            // inspections may begin: a relist was attempted
	stopped   bool
	wg        sync.WaitGroup // of inspections; nothing is added once stopped
	pods      map[types.UID]*podRecord
	absent    []absentPod            // in the order in which they were found
	syncing   map[types.UID]struct{} // between SyncStarted and SyncEnded
	seq       uint64                 // counts deferred changes
	relistSeq uint64                 // counts relists
	initWaits int                    // pods whose initWait needs more than relists
	queue     inspectQueue
	slowQueue inspectQueue // of pods whose last inspection was slow
	backlog   backlog
	health    health
	stream    stream
}

// New returns a Generator. It does no I/O and starts no goroutine.
func New(cfg Config) (*Generator, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	inspector, _ := runtime.Capability[runtime.ListedPodInspector](cfg.Runtime)
	return &Generator{
		cfg:             cfg,
		listedInspector: inspector,
		seed:            maphash.MakeSeed(),
		notify:          make(chan struct{}, 1),
		relistCh:        make(chan struct{}, 1),
		pods:            map[types.UID]*podRecord{},
		syncing:         map[types.UID]struct{}{},
		queue:           inspectQueue{free: cfg.MaxParallel},
		slowQueue:       inspectQueue{free: cfg.MaxParallel},
	}, nil
}

// Run lists, watches and inspects pods until ctx is done. It then waits for the
// calls under way and returns nil. It must not be called twice.
func (g *Generator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := g.start(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { g.watch(ctx) })
	g.relistPeriodically(ctx)
	wg.Wait()
	g.stop()
	return nil
}

func (g *Generator) start(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx != nil {
		return errors.New("pleg: Run was called twice")
	}
	g.ctx = ctx
	return nil
}

func (g *Generator) stop() {
	g.mu.Lock()
	g.stopped = true
	for _, r := range g.pods {
		r.stopTimers()
		g.endInitWait(r)
		if in := r.next; in != nil {
			in.err = ErrStopped
			close(in.done)
		}
	}
	g.mu.Unlock()
	g.wg.Wait()
}
