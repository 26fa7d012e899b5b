package pleg

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Runtime is what a Generator looks at. Its calls are made from many goroutines
// and must end when their context does.
type Runtime interface {
	// Pods lists all pods: ids, names, attempts and states.
	Pods(ctx context.Context) ([]runtime.Pod, error)
	// Pod inspects one pod. One that the runtime does not know gives an empty
	// Pod and no error.
	Pod(ctx context.Context, uid types.UID) (runtime.Pod, error)
	// Watch calls hint for each pod in which something may have changed, until
	// the stream breaks or ctx ends. Its error wraps runtime.ErrUnsupported where
	// there is no such stream. For a runtime.TimestampedWatcher WatchTimestamped is called instead.
	Watch(ctx context.Context, hint func(types.UID)) error
}

// Cache is where a Generator puts what it saw. Its methods must be quick. Calls for
// one pod never overlap.
type Cache interface {
	// Set stores the result of an inspection that began at a time.
	Set(uid types.UID, p runtime.Pod, err error, at time.Time)
	// Delete forgets a pod that is gone from the runtime.
	Delete(uid types.UID)
}

// ErrStopped is returned to those who ask a Generator whose Run has ended.
var ErrStopped = errors.New("pleg has stopped")

// Config describes a Generator. Runtime and Store are required.
type Config struct {
	Runtime Runtime
	Cache   Cache

	// IsWorking reports that a worker is in the middle of a turn for that pod and
	// will ask for a newer view itself when the turn ends. What hints and
	// listings tell of such a pod is held back until Release, for Hold at most.
	// Nil: no pod is ever busy. It must not block.
	IsWorking func(uid types.UID) bool

	RelistPeriod            time.Duration // between listings without an event stream; default 1 s
	EventedRelistPeriod     time.Duration // between listings with an event stream; default 5 min
	MaxDeferral             time.Duration // longest time that a busy pod is left alone; default 1 s
	MaxParallel             int           // inspections at a time; default 10
	Timeout                 time.Duration // of a listing or an inspection; default 1 min
	SlowInspectionThreshold time.Duration // inspections that take longer give their slot back; default 1 s
	RelistThreshold         time.Duration // without an answer makes unhealthy; default 3 min
	StreamOpenAfter         time.Duration // a stream that held so long is taken to be open; default 1 s
	StreamRetryPeriod       time.Duration // between tries to open an unsupported stream; default 10 min

	Logger *slog.Logger // default: discard
	Hooks  Hooks
}

// Hooks are called as the Generator works, from its own goroutines. Any may be
// nil. They must not block.
type Hooks struct {
	// Relisted: all pods were listed, and that many of them must be inspected.
	Relisted func(took time.Duration, pods, changed int, err error)
	// Inspected: one pod was looked at. It waited for a slot before that.
	Inspected func(uid types.UID, waited, took time.Duration, err error)
	// StreamChanged: the event stream was opened, or broke with err.
	StreamChanged func(open bool, err error)
	// RuntimeEventReceived: the event stream told of a pod.
	RuntimeEventReceived func(uid types.UID)
	// RuntimeEventsMissed: a listing found that many pods changed of which the open event
	// stream had not told.
	RuntimeEventsMissed func(pods int)
}

func (c *Config) fill() error {
	var errs []error
	if c.Runtime == nil {
		errs = append(errs, errors.New("pleg: nil Runtime"))
	}
	if c.Cache == nil {
		errs = append(errs, errors.New("pleg: nil Store"))
	}
	if c.MaxParallel < 0 {
		errs = append(errs, errors.New("pleg: negative Parallel"))
	}
	if c.MaxParallel == 0 {
		c.MaxParallel = 10
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
	}{
		{"Period", &c.RelistPeriod, time.Second},
		{"Backstop", &c.EventedRelistPeriod, 5 * time.Minute},
		{"Hold", &c.MaxDeferral, time.Second},
		{"Timeout", &c.Timeout, time.Minute},
		{"Stuck", &c.SlowInspectionThreshold, time.Second},
		{"Silence", &c.RelistThreshold, 3 * time.Minute},
		{"Settle", &c.StreamOpenAfter, time.Second},
		{"Reprobe", &c.StreamRetryPeriod, 10 * time.Minute},
	} {
		if *d.value < 0 {
			errs = append(errs, errors.New("pleg: negative "+d.name))
		}
		if *d.value == 0 {
			*d.value = d.unset
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = safe.Hooks(c.Logger, c.Hooks)
	return errors.Join(errs...)
}

// Generator lists and inspects pods, and tells what changed.
type Generator struct {
	cfg      Config
	seed     maphash.Seed
	notify   chan struct{} // one slot: the backlog is not empty
	relistCh chan struct{} // one slot: list at once

	// mu guards what follows. It is held over memory only.
	mu        sync.Mutex
	ctx       context.Context // of Run; inspections outlive the calls that ask for them
	open      bool            // inspections may begin: a first listing was tried
	stopped   bool
	wg        sync.WaitGroup // of inspections; nothing is added once stopped
	pods      map[types.UID]*podRecord
	seq       uint64 // counts hints and beginnings of inspections
	relistSeq uint64 // counts listings
	queue     inspectQueue
	slowQueue inspectQueue // pods that got stuck when last inspected
	backlog   backlog
	health    health
	stream    stream
}

// New returns a Generator. It does no I/O.
func New(cfg Config) (*Generator, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Generator{
		cfg:       cfg,
		seed:      maphash.MakeSeed(),
		notify:    make(chan struct{}, 1),
		relistCh:  make(chan struct{}, 1),
		pods:      map[types.UID]*podRecord{},
		queue:     inspectQueue{free: cfg.MaxParallel},
		slowQueue: inspectQueue{free: cfg.MaxParallel},
	}, nil
}

// Run lists, watches and inspects until ctx is done, then waits for the calls
// under way and returns nil. It can be called once.
func (g *Generator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := g.start(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { g.watch(ctx) })
	g.list(ctx)
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
	g.health.begin(time.Now())
	return nil
}

func (g *Generator) stop() {
	g.mu.Lock()
	g.stopped = true
	for _, r := range g.pods {
		r.stopTimers()
		if l := r.next; l != nil {
			r.next = nil
			l.err = ErrStopped
			close(l.done)
		}
	}
	g.mu.Unlock()
	g.wg.Wait()
}

// Notify returns a channel that can be received from when Drain has something to
// return. It has one reader.
func (g *Generator) Notify() <-chan struct{} { return g.notify }

// Drain returns all events that were not returned yet, in order for each pod,
// and never blocks. A view is in the Store before its events are here.
//
// What has not been drained is bounded for each pod: a long list is replaced by
// the difference between the last view told of and the present one.
func (g *Generator) Drain() []Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.notify: // it would wake the reader for nothing
	default:
	}
	return g.backlog.drain()
}

// publish adds what led from one view to the next. The caller holds mu.
func (g *Generator) publish(old, now runtime.Pod, events []Event) {
	if len(events) == 0 {
		return
	}
	g.backlog.add(old, now, events)
	select {
	case g.notify <- struct{}{}:
	default:
	}
}
