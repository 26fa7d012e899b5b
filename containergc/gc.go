package containergc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// Containers lists and removes containers and sandboxes. Its methods must return when
// their context is done. Removing what does not exist returns nil or an error that
// wraps runtime.ErrNotFound.
type Containers interface {
	Pods(ctx context.Context) ([]runtime.Pod, error)
	RemoveContainer(ctx context.Context, id string) error
	// RemoveSandbox also removes the containers of the sandbox.
	RemoveSandbox(ctx context.Context, id string) error
}

// ChangeCounter is Containers that need not be listed again while nothing has changed. A podcache.Lister is one.
type ChangeCounter interface {
	// Changes returns a number that stays the same as long as Pods would return the same. It
	// must not block.
	Changes() uint64
}

// Config is the configuration of a Collector. Containers and PodState are required.
type Config struct {
	Containers Containers
	// PodState returns the state of a pod, for example PodStates.State. An unknown pod is
	// PodDeleted only after all sources have synced, and PodDesired until then. It must
	// not block.
	PodState func(types.UID) PodState
	Policy   Policy

	// LogsDir has one directory per pod. Default: no logs are removed.
	LogsDir string
	// Owner returns the owner id in the marks of log directories of this agent's pods,
	// which podsync writes. Directories with another mark or none are kept, because
	// LogsDir may be shared. Default: no log directory is removed.
	Owner func() string
	// LinksDir has links to logs, with the names that log shippers expect. Links to logs
	// in marked directories are removed with the logs. Default: none.
	LinksDir string

	Period time.Duration // between collections. Default: 1m
	// RequestDelay is the minimum time between RequestCollection and the collection, which
	// is also 20 times the time in which all pods were last listed and logs cleaned up, but at
	// most Period. Default: 500ms.
	RequestDelay time.Duration
	// RemovalInterval is the minimum time between two removals, so that other calls of
	// the runtime are not delayed. Reclaim ignores it. Default: 20ms.
	RemovalInterval time.Duration

	NodeName string // of the events
	// Recorder gets an event of the node, ContainerGCFailed, for each collection of Run that
	// fails. Default: none.
	Recorder Recorder
	Logger   *slog.Logger // Default: discard
	Hooks    Hooks
}

// Hooks are called by the Collector and must not block. Each may be nil.
type Hooks struct {
	// Removed is called after the removal of a container or sandbox, successful or not.
	Removed func(r Removal, duration time.Duration, err error)
	// Collected is called after a collection.
	Collected func(Result, error)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Removed:   safe.Hook3(log, "ContainerGC.Removed", h.Removed, next.Removed),
		Collected: safe.Hook2(log, "ContainerGC.Collected", h.Collected, next.Collected),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		Removed:   safe.Hook3(log, "Removed", h.Removed),
		Collected: safe.Hook2(log, "Collected", h.Collected),
	}
}

// Result is the result of a collection.
type Result struct {
	Containers, Sandboxes, LogDirs, Links int // removed
	Duration                              time.Duration
}

// Collector removes exited containers, empty sandboxes and logs.
type Collector struct {
	cfg          Config
	collecting   chan struct{} // has one token, which the goroutine that collects owns
	collectCh    chan struct{}
	diskPressure atomic.Int32 // calls of Reclaim that wait or run
	listTime     atomic.Int64 // how long the last list of all pods took, its plan, and the cleanup of logs; nanoseconds
	remains      *remains     // owned by the goroutine that collects; nil before the first list
	logs         readLogs     // likewise
	backOffs     backOffs     // likewise
}

// remains are the pods of the last list of which something could be removed. No others need to be looked at while nothing changes:
// on an idle node, that is memory that was not used for a minute.
type remains struct {
	changes uint64 // when they were listed; see ChangeCounter
	pods    []runtime.Pod
}

const (
	// yieldAfter is the minimum duration of a collection before it yields to a request.
	yieldAfter = 500 * time.Millisecond
	// relistAfter is the maximum age of a list. Thousands of removals take minutes, and
	// pods remove their own containers meanwhile, so a long plan becomes outdated.
	relistAfter = 10 * time.Second
	// listShare is the part of the time, one in so many, in which collections for requests list
	// all pods and clean up logs, without the lists of a plan that takes long. While thousands of
	// pods end, there is a request at any time.
	listShare = 20
)

// New returns a Collector. It reports all errors in cfg at once and does no I/O.
func New(cfg Config) (*Collector, error) {
	var errs []error
	if cfg.Containers == nil || cfg.PodState == nil {
		errs = append(errs, errors.New("containergc: Config.Containers and PodState required"))
	}
	if err := errors.Join(append(errs, cfg.Check())...); err != nil {
		return nil, err
	}
	cfg.Period, cfg.RequestDelay = cmp.Or(cfg.Period, time.Minute), cmp.Or(cfg.RequestDelay, 500*time.Millisecond)
	cfg.RemovalInterval = cmp.Or(cfg.RemovalInterval, 20*time.Millisecond)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks, cfg.Recorder = cfg.Hooks.guarded(cfg.Logger), safe.Events(cfg.Logger, cfg.Recorder)
	return &Collector{cfg: cfg, collecting: make(chan struct{}, 1), collectCh: make(chan struct{}, 1)}, nil
}

// Check returns all errors in the policy and the durations, joined. New does so too, and
// checks what is required in addition.
func (c Config) Check() error {
	err := c.Policy.Check()
	if err != nil {
		err = fmt.Errorf("containergc: Config.Policy: %w", err)
	}
	if c.Period < 0 || c.RequestDelay < 0 || c.RemovalInterval < 0 {
		err = errors.Join(err, errors.New("containergc: Config: Period, RequestDelay and RemovalInterval must not be negative"))
	}
	return err
}

// Needs returns what the collection of containers depends on.
func (Config) Needs() []runtime.Need {
	return []runtime.Need{runtime.NeedFor[runtime.ContainerRemover]("container collection")}
}

// Run collects in each Period and after each RequestCollection, until ctx is done. Then
// it returns nil.
func (c *Collector) Run(ctx context.Context) error {
	next := time.NewTimer(c.cfg.Period)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.collectCh:
			// Requests are debounced, because pods often terminate together.
			next.Reset(max(c.cfg.RequestDelay, c.pause()))
			select {
			case <-ctx.Done():
				return nil
			case <-next.C:
			}
		case <-next.C:
		}
		for yielded := true; yielded; {
			yielded = false // also after a panic
			err := safe.Call(c.cfg.Logger, "collect containers", func() (err error) { _, yielded, err = c.collect(ctx, modePaced); return err })
			if err != nil && ctx.Err() == nil {
				c.failed(err)
			}
		}
		next.Reset(c.cfg.Period)
	}
}

// pause is the minimum time between two lists for requests. It is not longer than Config.Period.
func (c *Collector) pause() time.Duration {
	return min(listShare*time.Duration(c.listTime.Load()), c.cfg.Period)
}

// RequestCollection requests a collection soon, for example because a pod was deleted.
// It does not block.
func (c *Collector) RequestCollection() {
	notify.Send(c.collectCh)
}

// mode is the pace of a collection and what it yields to.
type mode uint8

const (
	modeFull   mode = iota // paced; yields to Reclaim
	modePaced              // paced; yields to Reclaim and to requests
	modeUrgent             // without pauses
)

// Collect removes what the policy does not keep, paced by RemovalInterval. A collection
// that takes long lists the pods again. It ends early when Reclaim is called, which
// removes the rest.
func (c *Collector) Collect(ctx context.Context) (Result, error) {
	result, _, err := c.collect(ctx, modeFull)
	return result, err
}

// Reclaim removes everything that is not needed, without pauses, to free disk space. It
// implements eviction.Reclaimer.
func (c *Collector) Reclaim(ctx context.Context) error {
	c.diskPressure.Add(1)
	defer c.diskPressure.Add(-1)
	_, _, err := c.collect(ctx, modeUrgent)
	return err
}

// Explain returns what Collect would remove now, without removing it.
func (c *Collector) Explain(ctx context.Context) ([]Removal, error) {
	pods, err := c.cfg.Containers.Pods(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return Plan(pods, c.cfg.PodState, c.cfg.Policy, false, time.Now()), nil
}

// collect runs one collection. yielded reports that it ended early because of a request,
// and has to be repeated.
func (c *Collector) collect(ctx context.Context, m mode) (result Result, yielded bool, err error) {
	select {
	case c.collecting <- struct{}{}:
	case <-ctx.Done():
		return Result{}, false, context.Cause(ctx)
	}
	defer func() { <-c.collecting }()
	startTime := time.Now()
	r := pass{mode: m, startTime: startTime, tried: make(map[string]bool), result: &result}
	for r.next = passRelist; r.next == passRelist; {
		err = errors.Join(err, c.runPass(ctx, &r))
	}
	removed := result != Result{}
	result.Duration = time.Since(startTime)
	if removed {
		c.cfg.Logger.Info("container garbage collection done", slog.Int("containers", result.Containers), slog.Int("sandboxes", result.Sandboxes),
			slog.Int("logDirs", result.LogDirs), slog.Int("links", result.Links), slog.Duration("duration", result.Duration))
	}
	if c.cfg.Hooks.Collected != nil {
		c.cfg.Hooks.Collected(result, err)
	}
	return result, r.next == passYielded, err
}

// pass is the state of a collection, over all its lists.
type pass struct {
	mode      mode
	startTime time.Time
	next      next
	result    *Result
	// tried are the ids of everything whose removal was attempted, and of the sandboxes
	// of containers that could not be removed. A later list may still contain them.
	tried map[string]bool
}

// next is how a collection continues after a plan was executed as far as possible.
type next uint8

const (
	passDone    next = iota // everything is done, or Reclaim does the rest
	passRelist              // the list is too old
	passYielded             // a collection was requested; it includes the rest
)

// runPass lists, plans and executes once. The list is released when it returns.
func (c *Collector) runPass(ctx context.Context, r *pass) error {
	startTime := time.Now()
	var changes uint64
	counter, counts := c.cfg.Containers.(ChangeCounter)
	if counts {
		changes = counter.Changes()
	}
	var pods []runtime.Pod
	var err error
	unchanged := counts && c.remains != nil && c.remains.changes == changes
	if !unchanged {
		if pods, err = c.list(ctx, changes); err != nil {
			r.next = passDone
			return err
		}
	}
	urgently := r.mode == modeUrgent
	plan := Plan(c.remains.pods, c.cfg.PodState, c.cfg.Policy, urgently, time.Now())
	c.backOffs = c.backOffs.of(plan)
	listTook := time.Since(startTime)
	c.listTime.Store(int64(listTook))
	r.next, err = c.execute(ctx, plan, r)
	if r.next == passRelist {
		return err
	}
	startTime = time.Now()
	if urgently || !counts || c.logsChanged(changes) {
		if unchanged {
			var listErr error
			if pods, listErr = c.list(ctx, changes); listErr != nil {
				return errors.Join(err, listErr)
			}
		}
		err = errors.Join(err, c.cleanLogs(ctx, pods, changes, urgently, r.result))
	}
	c.listTime.Store(int64(listTook + time.Since(startTime)))
	return err
}

// list lists all pods, and notes those of which something could be removed. changes is the number before it.
func (c *Collector) list(ctx context.Context, changes uint64) ([]runtime.Pod, error) {
	pods, err := c.cfg.Containers.Pods(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	c.remains = &remains{changes: changes}
	for i := range pods {
		if hasRemains(&pods[i]) {
			c.remains.pods = append(c.remains.pods, pods[i])
		}
	}
	return pods, nil
}

func (c *Collector) execute(ctx context.Context, plan []Removal, r *pass) (next, error) {
	var errs []error
	listedAt := time.Now()
	if r.mode == modeUrgent {
		plan = c.backOffs.last(plan, listedAt)
	}
	for _, x := range plan {
		if r.tried[x.id()] {
			continue
		}
		if r.mode == modePaced && c.backOffs.isRunning(x.id(), time.Now()) {
			r.skip(x)
			continue
		}
		if time.Since(listedAt) >= relistAfter {
			return passRelist, errors.Join(errs...)
		}
		if len(r.tried) > 0 && r.mode != modeUrgent {
			if err := sleep.For(ctx, c.cfg.RemovalInterval); err != nil {
				return passDone, errors.Join(append(errs, err)...)
			}
			if stop, next := c.shouldYield(r.mode, r.startTime); stop {
				return next, errors.Join(errs...)
			}
		}
		if ctx.Err() != nil {
			return passDone, errors.Join(append(errs, context.Cause(ctx))...)
		}
		err := c.remove(ctx, x)
		r.note(x, err)
		if ctx.Err() == nil {
			c.backOffs.note(x.id(), err, c.cfg.Period, time.Now())
		}
		errs = append(errs, err)
	}
	return passDone, errors.Join(errs...)
}

func (r *Removal) id() string {
	if r.Container != nil {
		return r.Container.ID
	}
	return r.Sandbox.ID
}

// skip leaves something for a later collection.
func (r *pass) skip(x Removal) {
	r.tried[x.id()] = true
	if x.Container != nil {
		r.tried[x.Container.SandboxID] = true // its removal would remove the container
	}
}

// note records the result of a removal.
func (r *pass) note(x Removal, err error) {
	r.tried[x.id()] = true
	switch {
	case err != nil:
		r.skip(x)
	case x.Container != nil:
		r.result.Containers++
	default:
		r.result.Sandboxes++
	}
}

// shouldYield reports whether a collection has to end before its plan is executed, and
// how it continues. Tens of thousands of removals take minutes: Reclaim does the rest
// at once, and after a request the collection is repeated with a new list.
func (c *Collector) shouldYield(m mode, startTime time.Time) (stop bool, then next) {
	if c.diskPressure.Load() > 0 {
		return true, passDone
	}
	if m != modePaced || time.Since(startTime) < max(yieldAfter, c.pause()) {
		return false, passDone
	}
	select {
	case <-c.collectCh:
		return true, passYielded
	default:
		return false, passDone
	}
}
