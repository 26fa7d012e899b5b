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

// Syncer does the work of each stage of a pod's life. Calls for one pod never
// overlap. Each must be idempotent and end soon after its ctx does: a call that
// does not holds up its pod, and Run when it ends.
type Syncer interface {
	// Sync brings the pod a step towards its spec.
	Sync(ctx context.Context, pod *corev1.Pod, seen runtime.Pod) (runtime.SyncResult, error)
	// Terminate ends the pod's containers. Success means that none runs. Of an
	// orphan, pod has a UID, namespace, name and source only, and nothing of it may
	// be left: no other call follows.
	Terminate(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, e runtime.Termination) error
	// Finish gives back what the pod held. It is called once more if the pod gets a
	// deletion timestamp, or is named by no source any more, only after it has finished.
	Finish(ctx context.Context, pod *corev1.Pod, e runtime.Termination) error
}

// Inspector tells what the runtime has of a pod, by an observation that began after a
// time. The zero time asks for whatever is known, and a pod of which nothing is
// known because there is nothing is no error.
type Inspector interface {
	GetNewerThan(ctx context.Context, uid types.UID, at time.Time) (runtime.Pod, error)
}

// UpdateType says what an Update is about.
type UpdateType uint8

// The kinds of update.
const (
	PodUpdate    UpdateType = iota // the pod is new or was changed
	PodCreate                      // the same, or the UID comes back: see Workers.SyncKnown
	PodReconcile                   // what it depends on was changed: its status, an object that it uses
)

// Update is a request about one pod. Either Pod or Orphan is set.
type Update struct {
	Type UpdateType
	Pod  *corev1.Pod // as it should be; read-only from here on
	// Orphan is a pod that is in the runtime and in no configuration. It is ended.
	// One that is known here is left alone.
	Orphan    *runtime.Pod
	Kill      *KillOptions // ends the pod as well
	StartTime time.Time    // when the need arose; zero: now
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

// KillOptions is a request to end a pod.
type KillOptions struct {
	GracePeriod time.Duration // the pod's own if zero or longer than that; else at least 1 s
	Force       bool          // no grace at all
	// Reason, if set, makes the pod Failed with it and Message. The first one that
	// is told stays.
	Reason, Message string
	Evicted         bool // adds the condition DisruptionTarget
	Deleted         bool // no source names the pod any more
	Drained         bool // the node stops: the pod is to be started again by another process

	// Done, if set, is called exactly once, soon and from any goroutine: with nil
	// when the pod's containers have ended, with ErrStopped if Run ended before, with
	// an error that wraps runtime.ErrNotFound if the pod is not known. It must not
	// block.
	Done func(error)
	// WaitUntilFinished makes Done wait until the pod has finished.
	WaitUntilFinished bool
}

// Hooks are called as pods move on. Any may be nil. They must not block.
type Hooks struct {
	// PhaseChanged is called for each step from one phase to another, in the order of the
	// steps, once at a time and before the call that follows the step.
	PhaseChanged func(uid types.UID, from, to Phase, why Cause)
	// SyncStarted and Ended frame each call of the Syncer.
	SyncStarted func(SyncCall)
	SyncEnded   func(t SyncCall, took time.Duration, out runtime.SyncResult, err error)
	// SyncPanicked is called when the Syncer panicked.
	SyncPanicked func(t SyncCall, value any)
}

// Config describes Workers.
type Config struct {
	Syncer    Syncer    // required
	Inspector Inspector // required

	ResyncPeriod time.Duration // between turns of a pod that nothing happens to; default 1 min
	BackOff      time.Duration // after a turn that failed; default 10 s
	Jitter       float64       // by which share of themselves both are lengthened at most; default 0.5

	// IsStopped reports, from memory, that nothing of the pod is alive in the runtime:
	// no container and no sandbox. A pod that is Succeeded or Failed when it is first
	// heard of is then taken for finished, and nobody is troubled. Default: never.
	IsStopped func(types.UID) bool

	// OnRequeue is told when a pod wants Wake(uid, RequeueDue); zero calls it off. It is
	// called once at a time, so that what it is told last counts. It must not block.
	// Default: a timer for each pod.
	OnRequeue func(uid types.UID, at time.Time)

	// RequestInspection asks for a look at a pod whose last turn may have changed the runtime,
	// or failed. If anything did change, the answer is a Wake(uid, RequeueEvent).
	// TurnEnded, called right after it, says that the pod is not Busy any more.
	// Neither is called between turns that follow one another. Neither may block.
	RequestInspection func(types.UID)
	OnIdle            func(types.UID)

	// OnFinished is told when a pod has come to its end, and once more when it was
	// deleted only later and has given back the rest. It must not block.
	OnFinished func(types.UID)

	Logger *slog.Logger // default: discard
	Hooks  Hooks
}

const (
	defaultResync  = time.Minute
	defaultBackOff = 10 * time.Second
	defaultJitter  = 0.5
)

func (c *Config) fill() error {
	var errs []error
	require := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("podworkers: "+what))
		}
	}
	require(c.Syncer != nil, "nil Syncer")
	require(c.Inspector != nil, "nil Seen")
	require(c.ResyncPeriod >= 0, "negative Resync")
	require(c.BackOff >= 0, "negative BackOff")
	require(c.Jitter >= 0, "negative Jitter")
	if c.ResyncPeriod == 0 {
		c.ResyncPeriod = defaultResync
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
	c.Hooks = safe.Hooks(c.Logger, c.Hooks)
	return errors.Join(errs...)
}

// Workers takes pods through their lives. Its methods may be called from any
// goroutine, before, while and after it runs.
type Workers struct {
	cfg Config

	mu        sync.Mutex // guards what follows; held over memory only
	book      *tracker
	active    map[types.UID]context.CancelCauseFunc // pods with a goroutine; nil between turns
	waiting   map[types.UID][]KillOptions           // those of Kills whose Done is owed
	timers    map[types.UID]*time.Timer             // where there is no Config.Due
	ownTimers bool                                  // timers are used whatever Config says
	ctx       context.Context                       // of Run, while it runs
	stopped   bool
	wg        sync.WaitGroup

	notices     []callback // to be told, oldest first
	delivering  bool       // somebody is at it
	noted, told uint64     // how many notices there were, and were told of
	allTold     *sync.Cond
}

// New returns Workers.
func New(cfg Config) (*Workers, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	w := &Workers{
		cfg:       cfg,
		book:      newBook(policy{resync: cfg.ResyncPeriod, backOff: cfg.BackOff, jitter: jitter(cfg.Jitter)}),
		active:    map[types.UID]context.CancelCauseFunc{},
		waiting:   map[types.UID][]KillOptions{},
		timers:    map[types.UID]*time.Timer{},
		ownTimers: cfg.OnRequeue == nil,
	}
	w.allTold = sync.NewCond(&w.mu)
	return w, nil
}

// Run makes the calls that are due until ctx is done. It then ends the contexts
// of the calls under way with the cause ErrStopped, waits for them and tells who
// waits for a Kill. No pod is ended by it. It is to be called once.
func (w *Workers) Run(ctx context.Context) error {
	turns, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	w.mu.Lock()
	w.ctx = turns
	for uid := range w.book.pods {
		w.launch(uid)
	}
	w.mu.Unlock()

	<-ctx.Done()
	w.mu.Lock()
	w.stopped = true
	for _, t := range w.timers {
		t.Stop()
	}
	clear(w.timers)
	w.mu.Unlock()
	stop(ErrStopped)
	w.wg.Wait()

	w.mu.Lock()
	owed := w.waiting
	w.waiting = map[types.UID][]KillOptions{}
	w.mu.Unlock()
	for _, kills := range owed {
		for _, k := range kills {
			w.failKill(&k, ErrStopped)
		}
	}
	return nil
}
