package syncloop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// Handler does what a turn of the loop is for. Its methods are called from the
// loop's goroutine and must not block.
type Handler interface {
	// HandlePodChange takes pods that were added, changed or removed.
	HandlePodChange(c podsource.Change)
	// HandlePodSync takes a pod that has to be looked at again. It may be unknown.
	HandlePodSync(uid types.UID, why podworkers.RequeueReason)
	// HandlePodRecreations takes pods that came back while they ended, and have ended now, or while
	// what was left of them was removed.
	HandlePodRecreations(uids []types.UID)
	// Revisit is called when pods have come to their end, and once in a Housekeeping
	// period with none: what was put off may be possible now.
	Revisit(ended []types.UID)
}

// Cleaner looks for what is left over. Its methods run beside the loop, one at a
// time, and may take their time; both return the pods that have to be added anew. A
// Keeper that goes on with something after they have returned has a method Wait,
// which Run calls last and which returns when that has ended.
type Cleaner interface {
	// CleanupPods looks at everything. It reports whether all is settled: until
	// something happens there will be nothing to do.
	CleanupPods(ctx context.Context) (again []types.UID, settled bool)
	// CleanupFinished looks at pods that have come to their end.
	CleanupFinished(ctx context.Context, ended []types.UID) (again []types.UID)
}

// Events are what happened in the runtime. Notify has a value when Drain has
// something.
type Events interface {
	Notify() <-chan struct{}
	Drain() []pleg.Event
}

// Probes are the pods with a container of which a probe thinks otherwise than
// before.
type Probes interface {
	Notify() <-chan struct{}
	Drain() []types.UID
}

// Config describes a Loop.
type Config struct {
	Changes <-chan podsource.Change // what is wanted; the loop ends when it is closed. Required
	Handler Handler                 // required
	Events  Events                  // default: none
	Probes  Probes                  // default: none
	Cleaner Cleaner                 // default: nobody looks

	// RuntimeReady asks the runtime whether pods can be run. It is called beside the loop,
	// once at a time and with a deadline. It should answer from memory as long as
	// anything else proves that the runtime is well, and must not say so before
	// what runs in it is known. Default: it always can.
	RuntimeReady func(ctx context.Context) error
	// RecheckRuntime has a value when Ready may have something new to say. Default: never;
	// it is asked at intervals.
	RecheckRuntime <-chan struct{}

	// HousekeepingPeriod is the time between housekeepings, as long as there is reason for
	// them: something was changed, seen or ended since the last one, or that left
	// something to do. Default: 2 s.
	HousekeepingPeriod     time.Duration
	IdleHousekeepingPeriod time.Duration // between housekeepings when there is none; default 1 min
	RuntimeCheckPeriod     time.Duration // between calls of Ready, and the deadline of each; default 5 s
	RuntimeSyncThreshold   time.Duration // how long a runtime counts as ready that does not say so any more; default 30 s

	Logger *slog.Logger // default: discard
	Hooks  Hooks
}

// Hooks are called from the loop's goroutine. Any may be nil. They must not block.
type Hooks struct {
	// IterationEnded is called after each turn: what it was for and how long it took.
	IterationEnded func(in Input, took time.Duration)
	// RuntimeReadyChanged is called when the runtime becomes ready (nil) or ceases to be.
	RuntimeReadyChanged func(err error)
}

// Input is what a turn of the loop is for.
type Input string

// The inputs.
const (
	InputChange       Input = "change"
	InputEvent        Input = "event"
	InputProbe        Input = "probe"
	InputRequeue      Input = "due"
	InputHousekeeping Input = "housekeep"
	InputRuntime      Input = "runtime"
)

const (
	defaultHousekeeping = 2 * time.Second
	defaultAtRest       = time.Minute
	defaultCheckPeriod  = 5 * time.Second
	defaultPatience     = 30 * time.Second
)

func (c *Config) fill() error {
	var errs []error
	require := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("syncloop: "+what))
		}
	}
	require(c.Changes != nil, "nil Changes")
	require(c.Handler != nil, "nil Handler")
	for name, d := range map[string]*time.Duration{
		"Housekeeping": &c.HousekeepingPeriod, "AtRest": &c.IdleHousekeepingPeriod, "CheckPeriod": &c.RuntimeCheckPeriod, "Patience": &c.RuntimeSyncThreshold,
	} {
		require(*d >= 0, "negative "+name)
	}
	orDefault(&c.HousekeepingPeriod, defaultHousekeeping)
	orDefault(&c.IdleHousekeepingPeriod, defaultAtRest)
	orDefault(&c.RuntimeCheckPeriod, defaultCheckPeriod)
	orDefault(&c.RuntimeSyncThreshold, defaultPatience)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = safe.Hooks(c.Logger, c.Hooks)
	return errors.Join(errs...)
}

func orDefault(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
}

// Loop joins the streams. Due, Ended, Healthy and LastTurn may be called from any
// goroutine, at any time.
type Loop struct {
	cfg        Config
	finishedCh chan struct{} // one slot: ended has something
	wake       chan struct{} // one slot: the first due time changed

	mu         sync.Mutex // guards what follows; held over memory only
	dues       requeueTimes
	ended      []types.UID // pods to tidy up after
	last       time.Time   // of the last turn's end; zero before Run
	runtimeErr error       // the runtime is not ready
	since      time.Time   // when it last became so
	keeps      time.Time   // when the housekeeping under way began; zero: none is
}

// New returns a Loop.
func New(cfg Config) (*Loop, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Loop{cfg: cfg, finishedCh: make(chan struct{}, 1), wake: make(chan struct{}, 1)}, nil
}

// RequeueAt sets when a pod is to be woken, in the place of what was set before; the
// zero time calls it off. A wall clock that is set later changes nothing about it.
// It does not block.
func (l *Loop) RequeueAt(uid types.UID, at time.Time) {
	l.mu.Lock()
	before := l.dues.next()
	l.dues.set(uid, at)
	changed := !l.dues.next().Equal(before)
	l.mu.Unlock()
	if changed {
		signal(l.wake)
	}
}

// PodFinished says that a pod has come to its end, so that it is tidied up after at
// once. It does not block.
func (l *Loop) PodFinished(uid types.UID) {
	if l.cfg.Cleaner == nil {
		return
	}
	l.mu.Lock()
	l.ended = append(l.ended, uid)
	l.mu.Unlock()
	signal(l.finishedCh)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
