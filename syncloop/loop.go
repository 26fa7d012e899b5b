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
	"github.com/sublet-dev/agent/probe"
)

// Handler handles the inputs of the loop. Its methods are called from the goroutine of
// the loop and must not block.
type Handler interface {
	// HandlePodChange handles pods that were added, updated, deleted or removed.
	HandlePodChange(c podsource.Change)
	// HandlePodSync requeues a pod, which may be unknown.
	HandlePodSync(uid types.UID, why podworkers.RequeueReason)
	// HandlePodRecreations handles pods that were desired again during their termination
	// or during the removal of their resources, after that has ended.
	HandlePodRecreations(uids []types.UID)
	// Revisit retries postponed work, and returns when it must be called again, or the zero time
	// if nothing is left to be retried. It is called when pods have finished, and with none after
	// a change, at the first HousekeepingPeriod from retryAt on, and at least once per
	// IdleHousekeepingPeriod.
	Revisit(finished []types.UID) (retryAt time.Time)
}

// Cleaner removes what finished, deleted and orphaned pods have left. Its methods run
// in a goroutine of their own, one at a time, and may block. Both return the pods that
// must be added again. A Cleaner may continue to work after they have returned.
type Cleaner interface {
	// CleanupPods checks all pods. It reports whether everything is settled: then there
	// is nothing to do until something happens.
	CleanupPods(ctx context.Context) (recreated []types.UID, settled bool)
	// CleanupFinished checks pods that have finished.
	CleanupFinished(ctx context.Context, finished []types.UID) (recreated []types.UID)
	// Wait returns when work that continued has ended. Run calls it last.
	Wait()
}

// Events is a source of PLEG events. Notify receives a value when Drain has events.
type Events interface {
	Notify() <-chan struct{}
	Drain() []pleg.Event
}

// Probes is a source of changed probe results, grouped by pod. Notify receives a value
// when Drain has changes.
type Probes interface {
	Notify() <-chan struct{}
	Drain() []probe.ResultChange
}

// LoopWorkers is what the Loop needs of the pod workers. None of the methods blocks.
type LoopWorkers interface {
	// PauseRequeues stops or resumes the resync and the retries of all pods.
	PauseRequeues(paused bool)
	// OverduePods returns how many pods have been due for longer than threshold.
	OverduePods(threshold time.Duration) int
	// NotifyFinished receives a value when DrainFinished has pods that have finished, so
	// that they are cleaned up at once and others get their resources.
	NotifyFinished() <-chan struct{}
	DrainFinished() []types.UID
}

// RuntimeState knows whether the runtime can run pods.
type RuntimeState interface {
	// Ready returns nil if the runtime can run pods. It is called outside of the loop, one
	// call at a time and with a deadline. It should answer from memory while anything else
	// proves that the runtime is ready, and must return an error until the pods in the
	// runtime are known.
	Ready(ctx context.Context) error
	// Recheck receives a value when the result of Ready may have changed. It may return
	// nil: Ready is also polled.
	Recheck() <-chan struct{}
}

// Config describes a Loop.
type Config struct {
	Changes <-chan podsource.Change // desired state; the loop ends when it is closed. Required
	Handler Handler                 // required
	Workers LoopWorkers             // Default: none; what pods that finish have left waits for housekeeping
	Events  Events                  // Default: none
	Probes  Probes                  // Default: none
	Cleaner Cleaner                 // Default: no housekeeping

	RuntimeState RuntimeState // Default: the runtime is always ready

	// HousekeepingPeriod is the time between passes of housekeeping while there is a
	// reason for them: something has changed since the last one, or it left something to
	// do. Default: 2s.
	HousekeepingPeriod     time.Duration
	IdleHousekeepingPeriod time.Duration // between passes without a reason. Default: 1m
	RuntimeCheckPeriod     time.Duration // between calls of RuntimeState.Ready, and the deadline of each. Default: 5s
	RuntimeSyncThreshold   time.Duration // how long a runtime counts as ready after the last nil of RuntimeState.Ready. Default: 30s

	Logger *slog.Logger // Default: discard
	Hooks  Hooks
}

// Hooks are called from the goroutine of the loop. Any may be nil. They must not block.
type Hooks struct {
	// IterationEnded is called after each iteration with its input and duration.
	IterationEnded func(in Input, duration time.Duration)
	// RuntimeReadyChanged is called when the runtime becomes ready (nil) or not ready.
	RuntimeReadyChanged func(err error)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		IterationEnded:      safe.Hook2(log, "SyncLoop.IterationEnded", h.IterationEnded, next.IterationEnded),
		RuntimeReadyChanged: safe.Hook1(log, "SyncLoop.RuntimeReadyChanged", h.RuntimeReadyChanged, next.RuntimeReadyChanged),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		IterationEnded:      safe.Hook2(log, "IterationEnded", h.IterationEnded),
		RuntimeReadyChanged: safe.Hook1(log, "RuntimeReadyChanged", h.RuntimeReadyChanged),
	}
}

// Input is what an iteration of the loop handles.
type Input string

// The inputs.
const (
	InputChange       Input = "change"
	InputEvent        Input = "event"
	InputProbe        Input = "probe"
	InputHousekeeping Input = "housekeeping"
	InputRuntime      Input = "runtime"
)

const (
	defaultHousekeepingPeriod     = 2 * time.Second
	defaultIdleHousekeepingPeriod = time.Minute
	defaultRuntimeCheckPeriod     = 5 * time.Second
	defaultRuntimeSyncThreshold   = 30 * time.Second
)

func (c *Config) fill() error {
	var errs []error
	require := func(ok bool, problem string) {
		if !ok {
			errs = append(errs, errors.New("syncloop: Config."+problem))
		}
	}
	require(c.Changes != nil, "Changes required")
	require(c.Handler != nil, "Handler required")
	require(c.HousekeepingPeriod >= 0, "HousekeepingPeriod must not be negative")
	require(c.IdleHousekeepingPeriod >= 0, "IdleHousekeepingPeriod must not be negative")
	require(c.RuntimeCheckPeriod >= 0, "RuntimeCheckPeriod must not be negative")
	require(c.RuntimeSyncThreshold >= 0, "RuntimeSyncThreshold must not be negative")
	setDefault(&c.HousekeepingPeriod, defaultHousekeepingPeriod)
	setDefault(&c.IdleHousekeepingPeriod, defaultIdleHousekeepingPeriod)
	setDefault(&c.RuntimeCheckPeriod, defaultRuntimeCheckPeriod)
	setDefault(&c.RuntimeSyncThreshold, defaultRuntimeSyncThreshold)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = c.Hooks.guarded(c.Logger)
	return errors.Join(errs...)
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// Loop is the sync loop. Healthy and LastIteration may be called from any goroutine, at
// any time.
type Loop struct {
	cfg Config

	mu           sync.Mutex // guards what follows; held over memory only
	iterationAt  time.Time  // end of the last iteration; zero before Run
	runtimeErr   error      // why the runtime is not ready
	cleanupSince time.Time  // start of the cleanup that runs; zero: none
}

// New returns a Loop.
func New(cfg Config) (*Loop, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Loop{cfg: cfg}, nil
}
