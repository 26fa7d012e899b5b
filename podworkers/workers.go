package podworkers

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Syncer does the work of each phase of a pod. Calls for one pod never overlap.
// Each method must be idempotent and return soon after its ctx is done: until it
// returns, it delays its pod, and Run when that ends.
type Syncer interface {
	// Sync brings the pod closer to its desired state.
	Sync(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error)
	// Terminate stops the pod's containers. It returns nil when none runs. For an
	// orphan, pod has only a UID, namespace, name and source, and Terminate must
	// also release all resources, because Finish is not called.
	Terminate(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, t runtime.Termination) error
	// Finish releases the pod's resources. It is called again if the pod gets a
	// deletion timestamp, or is removed from all sources, after it has finished.
	Finish(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error
}

// Inspector has the state of each pod in the runtime. See pleg.Generator.
type Inspector interface {
	// GetNewerThan returns a state that was observed after the given time. For the
	// zero time any state is new enough. For a pod that does not exist it returns an
	// empty Pod and no error.
	GetNewerThan(ctx context.Context, uid types.UID, at time.Time) (runtime.Pod, error)
	// IsRunning reports, from memory, whether the pod has a running container or a
	// ready sandbox, or may have. A pod that is first seen in a terminal phase and is
	// not running is marked finished without a call of the Syncer. No static pod waits for an
	// orphan that is not running. It must not block.
	IsRunning(uid types.UID) bool
}

// Observer is notified when the worker of a pod is syncing, so that the pod need not
// be inspected meanwhile. Its methods are called one at a time for each pod, and must
// not block. See pleg.Generator.
type Observer interface {
	// SyncStarted is called before each call of the Syncer.
	SyncStarted(uid types.UID)
	// SyncEnded is called after the last of consecutive calls. changed is false if the
	// last call reported that it has changed nothing in the runtime. Otherwise the
	// Observer must inspect the pod, and the owner must call Requeue(uid, RequeueEvent)
	// if that finds a change.
	SyncEnded(uid types.UID, changed bool)
}

// UpdateType is the kind of an Update.
type UpdateType uint8

// The update types.
const (
	PodUpdate    UpdateType = iota // the pod is new or has changed
	PodCreate                      // the same, or its UID was recreated: see Workers.SyncKnownPods
	PodReconcile                   // its status or an object that it uses has changed
)

// Update is a request for one pod. Either Pod or Orphan is set.
type Update struct {
	Type UpdateType
	Pod  *corev1.Pod // the desired pod; must not be modified after the call
	// Orphan is a pod in the runtime that no source contains. It is terminated. If
	// its UID is known here, it is ignored.
	Orphan    *runtime.Pod
	Kill      *KillOptions // if not nil, the pod is also killed
	StartTime time.Time    // when the reason for the update arose. Default: now
}

func (u Update) uid() types.UID {
	switch {
	case u.Pod != nil:
		return u.Pod.UID
	case u.Orphan != nil:
		return u.Orphan.UID
	}
	return ""
}

// KillOptions is a request to terminate a pod.
type KillOptions struct {
	// Termination is how and why. Its GracePeriod is at least 1s; the default, and the
	// upper limit, is the pod's own. Of several requests the shortest one applies, and
	// Reason and Message of the first that has a Reason.
	runtime.Termination
	Force bool // kill without grace period

	// Done, if set, is called exactly once, from any goroutine: with nil when the
	// pod's containers have stopped, with ErrStopped if Run has ended before, or with
	// an error that wraps runtime.ErrNotFound if the pod is unknown. It must not
	// block.
	Done func(error)
	// WaitUntilFinished delays Done until the pod has finished.
	WaitUntilFinished bool
}

// Hooks observe pods and the calls of the Syncer. Each may be nil and must not block.
type Hooks struct {
	// PhaseChanged is called for each change of a phase, in order, one at a time,
	// and before the first call of the new phase.
	PhaseChanged func(uid types.UID, from, to Phase, cause Cause)
	// SyncStarted is called before each call of the Syncer, which gets the context that
	// it returns: ctx or one derived from it, for instance with a trace span. Nil counts
	// as ctx.
	SyncStarted func(ctx context.Context, call SyncCall) context.Context
	// SyncEnded is called after each call of the Syncer, also if that has panicked, with
	// the context that SyncStarted returned. It is done if the call was cancelled.
	SyncEnded func(ctx context.Context, call SyncCall, duration time.Duration, result runtime.SyncResult, err error)
	// PodFinished is called when a pod has finished, and again when it was deleted
	// later and the rest of its resources are released.
	PodFinished func(uid types.UID)
	// SyncPanicked is called when the Syncer has panicked.
	SyncPanicked func(call SyncCall, value any)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		PhaseChanged: safe.Hook4(log, "PodWorkers.PhaseChanged", h.PhaseChanged, next.PhaseChanged),
		SyncStarted:  safe.HookContext(log, "PodWorkers.SyncStarted", h.SyncStarted, next.SyncStarted),
		SyncEnded:    safe.Hook5(log, "PodWorkers.SyncEnded", h.SyncEnded, next.SyncEnded),
		PodFinished:  safe.Hook1(log, "PodWorkers.PodFinished", h.PodFinished, next.PodFinished),
		SyncPanicked: safe.Hook2(log, "PodWorkers.SyncPanicked", h.SyncPanicked, next.SyncPanicked),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		PhaseChanged: safe.Hook4(log, "PhaseChanged", h.PhaseChanged),
		SyncStarted:  safe.HookContext(log, "SyncStarted", h.SyncStarted),
		SyncEnded:    safe.Hook5(log, "SyncEnded", h.SyncEnded),
		PodFinished:  safe.Hook1(log, "PodFinished", h.PodFinished),
		SyncPanicked: safe.Hook2(log, "SyncPanicked", h.SyncPanicked),
	}
}

// Config configures Workers. Syncer and Inspector are required.
type Config struct {
	Syncer    Syncer
	Inspector Inspector
	Observer  Observer // Default: none

	ResyncPeriod time.Duration // between syncs of a pod without requests. Default: 1m
	// SettledResyncPeriod is the same for a pod whose last two syncs had runtime.SyncResult.Settled.
	// Default: five times ResyncPeriod.
	SettledResyncPeriod time.Duration
	BackOff             time.Duration // after a failed call. Default: 10s
	Jitter              float64       // lengthens both by up to this share. Default: 0.5

	// Logger gets the phases of each pod at Info. Default: discard.
	Logger *slog.Logger
	Hooks  Hooks
}

const (
	defaultResyncPeriod = time.Minute
	settledResyncs      = 5 // resync periods between syncs of a settled pod
	defaultBackOff      = 10 * time.Second
	defaultJitter       = 0.5
)

// Check returns all errors in the intervals, joined. New does so too, and checks what is
// required in addition.
func (c Config) Check() error {
	var errs []error
	if c.ResyncPeriod < 0 {
		errs = append(errs, errors.New("podworkers: Config.ResyncPeriod: must not be negative"))
	}
	if c.SettledResyncPeriod < 0 {
		errs = append(errs, errors.New("podworkers: Config.SettledResyncPeriod: must not be negative"))
	}
	if c.BackOff < 0 {
		errs = append(errs, errors.New("podworkers: Config.BackOff: must not be negative"))
	}
	if c.Jitter < 0 {
		errs = append(errs, errors.New("podworkers: Config.Jitter: must not be negative"))
	}
	return errors.Join(errs...)
}

// complete checks the configuration and sets the defaults.
func (c *Config) complete() error {
	errs := []error{c.Check()}
	if c.Syncer == nil {
		errs = append(errs, errors.New("podworkers: Config.Syncer: required"))
	}
	if c.Inspector == nil {
		errs = append(errs, errors.New("podworkers: Config.Inspector: required"))
	}
	if c.ResyncPeriod == 0 {
		c.ResyncPeriod = defaultResyncPeriod
	}
	if c.SettledResyncPeriod == 0 {
		c.SettledResyncPeriod = settledResyncs * c.ResyncPeriod
	}
	if c.BackOff == 0 {
		c.BackOff = defaultBackOff
	}
	if c.Jitter == 0 {
		c.Jitter = defaultJitter
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = c.Hooks.guarded(c.Logger)
	return errors.Join(errs...)
}

// Workers runs the lifecycle of pods. Its methods may be called concurrently,
// before, while and after it runs.
type Workers struct {
	cfg Config

	// mu guards the fields below. No I/O and no callback runs under it.
	mu          sync.Mutex
	tracker     *tracker
	active      map[types.UID]context.CancelCauseFunc // pods with a goroutine; nil between calls
	killWaiters map[types.UID][]KillOptions           // kills whose Done was not called yet
	requeues    requeueTimes                          // of the pods whose requeueAt is not zero
	timer       *time.Timer                           // of the first of requeues; nil: not needed yet
	timerAt     time.Time                             // when timer fires; zero: never
	paused      bool                                  // see PauseRequeues
	resumedAt   time.Time                             // when paused changed
	draining    bool                                  // see Drain
	ctx         context.Context                       // of Run; nil before it
	stopped     bool
	wg          sync.WaitGroup

	finished       []types.UID   // pods that DrainFinished returns
	finishedCh     chan struct{} // one slot: finished has pods
	recordFinished bool          // NotifyFinished was called, so that finished has a reader

	callbacks                    []callback // queued, oldest first
	delivering                   bool       // a goroutine is running callbacks
	callbacksAdded, callbacksRun uint64
	callbacksChanged             *sync.Cond // callbacksRun has increased
}

// New returns Workers. It does no I/O and starts no goroutine.
func New(cfg Config) (*Workers, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	w := &Workers{
		cfg:         cfg,
		tracker:     newTracker(policy{origin: time.Now(), resyncPeriod: cfg.ResyncPeriod, settledPeriod: cfg.SettledResyncPeriod, spread: cfg.Jitter, backOff: cfg.BackOff, jitter: jitter(cfg.Jitter)}),
		active:      map[types.UID]context.CancelCauseFunc{},
		killWaiters: map[types.UID][]KillOptions{},
		finishedCh:  make(chan struct{}, 1),
	}
	w.callbacksChanged = sync.NewCond(&w.mu)
	return w, nil
}

// Run makes the calls that are due until ctx is done. It then cancels the calls
// under way with the cause ErrStopped, waits for them, and calls the Done of
// pending kills. It does not terminate pods. It must not be called twice.
func (w *Workers) Run(ctx context.Context) error {
	callCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	w.mu.Lock()
	w.ctx = callCtx
	for uid := range w.tracker.pods {
		w.launch(uid)
	}
	w.mu.Unlock()

	<-ctx.Done()
	w.mu.Lock()
	w.stopped = true
	w.setTimer()
	w.mu.Unlock()
	stop(ErrStopped)
	w.wg.Wait()

	w.mu.Lock()
	waiters := w.killWaiters
	w.killWaiters = map[types.UID][]KillOptions{}
	w.mu.Unlock()
	for _, kills := range waiters {
		for _, k := range kills {
			w.failKill(&k, ErrStopped)
		}
	}
	return nil
}
