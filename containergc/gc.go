package containergc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Containers is what a Collector keeps small. Its calls must end when their
// context does. Removing what is not there is no error, or one that wraps
// runtime.ErrNotFound.
type Containers interface {
	Pods(ctx context.Context) ([]runtime.Pod, error)
	RemoveContainer(ctx context.Context, id string) error
	// RemoveSandbox also removes what is still in the sandbox.
	RemoveSandbox(ctx context.Context, id string) error
}

// Config describes a Collector. Containers and Standing are required.
type Config struct {
	Containers Containers
	// PodState tells how a pod stands. A pod of which nobody knows is Gone only
	// once every source of pods has spoken; until then it is Wanted. It must not
	// block.
	PodState func(types.UID) PodState
	Policy   Policy

	// LogsDir has a folder for each pod. Default: none, and no logs are removed.
	LogsDir string
	// Owner returns the id that log folders of this agent's pods are marked with,
	// as podsync does. What bears another mark or none stays: others keep their logs
	// in the same folder. Default: no log folder is removed.
	Owner func() string
	// LinksDir has links to logs, by names that log shippers know. Those to logs in
	// marked folders go with the logs. Default: none.
	LinksDir string

	Period       time.Duration // between looks; default 1 min
	RequestDelay time.Duration // between Poke and the look that follows; default 500 ms
	// RemovalInterval is the least time between two removals, so that others get their turn
	// with the runtime. It does not count when disk is short. Default: 20 ms.
	RemovalInterval time.Duration

	Logger *slog.Logger // default: discard
	Hooks  Hooks
}

// Hooks are called as the Collector works. Any may be nil. They must not block.
type Hooks struct {
	// Removed: a container or sandbox is gone, or failed to go.
	Removed func(r Removal, took time.Duration, err error)
	// Collected: a collection has ended.
	Collected func(Result, error)
}

// Result is what a collection came to.
type Result struct {
	Containers, Sandboxes, LogDirs, Links int // removed
	Duration                              time.Duration
}

// Collector removes dead containers.
type Collector struct {
	cfg          Config
	collecting   chan struct{} // whoever has the token may collect
	collectCh    chan struct{}
	diskPressure atomic.Int32 // calls of Reclaim that wait for their turn
}

const (
	// yieldAfter is how long a collection goes on when there is something newer to do.
	yieldAfter = 500 * time.Millisecond
	// relistAfter is how long it goes on with what it saw. Thousands of removals take
	// minutes, and meanwhile pods remove what is theirs: what was seen of them would
	// be kept for nothing, and the rest would wait for removals of what is gone.
	relistAfter = 10 * time.Second
)

// New returns a Collector. It touches neither the runtime nor the disk.
func New(cfg Config) (*Collector, error) {
	var errs []error
	if cfg.Containers == nil || cfg.PodState == nil {
		errs = append(errs, errors.New("containergc: nil Containers or Standing"))
	}
	if cfg.Policy.MaxPerPodContainer < KeepUntilReplaced {
		errs = append(errs, fmt.Errorf("containergc: PerContainer %d means nothing", cfg.Policy.MaxPerPodContainer))
	}
	if cfg.Policy.MinAge < 0 || cfg.Policy.MaxContainers < 0 || cfg.Period < 0 || cfg.RequestDelay < 0 || cfg.RemovalInterval < 0 {
		errs = append(errs, errors.New("containergc: negative MinAge, PerNode, Period, Delay or Pace"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cfg.Period, cfg.RequestDelay = orElse(cfg.Period, time.Minute), orElse(cfg.RequestDelay, 500*time.Millisecond)
	cfg.RemovalInterval = orElse(cfg.RemovalInterval, 20*time.Millisecond)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = safe.Hooks(cfg.Logger, cfg.Hooks)
	return &Collector{cfg: cfg, collecting: make(chan struct{}, 1), collectCh: make(chan struct{}, 1)}, nil
}

func orElse(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}

// Run looks each Period, and soon after each Poke, until ctx is done. Then it
// returns nil.
func (c *Collector) Run(ctx context.Context) error {
	next := time.NewTimer(c.cfg.Period)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.collectCh:
			// Pods end in crowds: a moment later one look does for all of them.
			next.Reset(c.cfg.RequestDelay)
			select {
			case <-ctx.Done():
				return nil
			case <-next.C:
			}
		case <-next.C:
		}
		for again := true; again; {
			again = false // unless the collection says so
			err := safe.Call(c.cfg.Logger, "collect containers", func() (err error) { _, again, err = c.collect(ctx, modePaced); return err })
			if err != nil && ctx.Err() == nil {
				c.cfg.Logger.Warn("container collection failed", slog.Any("error", err))
			}
		}
		next.Reset(c.cfg.Period)
	}
}

// RequestCollection asks for a look soon: a pod is gone. It never blocks.
func (c *Collector) RequestCollection() {
	select {
	case c.collectCh <- struct{}{}:
	default:
	}
}

// mode is how a collection goes about it.
type mode uint8

const (
	modeFull   mode = iota // at its pace, to the end unless a Reclaim is waiting
	modePaced              // as whole, but giving way to a Poke
	modeUrgent             // without a pause
)

// Collect removes what the policy says, at its pace. It looks again now and then,
// if that takes long. It ends early when Reclaim is called, which then does the
// rest.
func (c *Collector) Collect(ctx context.Context) (Result, error) {
	result, _, err := c.collect(ctx, modeFull)
	return result, err
}

// Reclaim removes all that can be spared, as fast as the runtime can: disk is
// short. It makes a Collector an eviction.Reclaimer.
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

// collect is one collection. again says that it gave way to a Poke, and has not
// done all.
func (c *Collector) collect(ctx context.Context, m mode) (result Result, again bool, err error) {
	select {
	case c.collecting <- struct{}{}:
	case <-ctx.Done():
		return Result{}, false, context.Cause(ctx)
	}
	defer func() { <-c.collecting }()
	began := time.Now()
	r := pass{mode: m, began: began, tried: make(map[string]bool), result: &result}
	for r.next = passRelist; r.next == passRelist; {
		err = errors.Join(err, c.runPass(ctx, &r))
	}
	result.Duration = time.Since(began)
	if n := result.Containers + result.Sandboxes + result.LogDirs + result.Links; n > 0 {
		c.cfg.Logger.Info("containers collected", slog.Int("containers", result.Containers), slog.Int("sandboxes", result.Sandboxes),
			slog.Int("log_folders", result.LogDirs), slog.Int("links", result.Links), slog.Duration("took", result.Duration))
	}
	if c.cfg.Hooks.Collected != nil {
		c.cfg.Hooks.Collected(result, err)
	}
	return result, r.next == passYielded, err
}

// pass is a collection under way, from one look to the next.
type pass struct {
	mode   mode
	began  time.Time
	next   next
	result *Result
	// tried are the ids of what was removed or would not go, and of the sandboxes of
	// containers that would not: what was seen later may have them still.
	tried map[string]bool
}

// next is what follows when a plan was carried out as far as it was.
type next uint8

const (
	passDone    next = iota // all is done, or others do the rest
	passRelist              // what was seen is stale
	passYielded             // a Poke came: the rest comes with what is new
)

// runPass looks, plans and carries out. What was seen is let go when it returns.
func (c *Collector) runPass(ctx context.Context, r *pass) error {
	pods, err := c.cfg.Containers.Pods(ctx)
	if err != nil {
		r.next = passDone
		return fmt.Errorf("list pods: %w", err)
	}
	urgently := r.mode == modeUrgent
	r.next, err = c.carryOut(ctx, Plan(pods, c.cfg.PodState, c.cfg.Policy, urgently, time.Now()), r)
	if r.next == passRelist {
		return err
	}
	return errors.Join(err, c.cleanLogs(pods, urgently, r.result))
}

func (c *Collector) carryOut(ctx context.Context, plan []Removal, r *pass) (next, error) {
	var errs []error
	seen, removals := time.Now(), 0
	for _, x := range plan {
		if r.tried[x.id()] {
			continue
		}
		if removals > 0 && time.Since(seen) >= relistAfter {
			return passRelist, errors.Join(errs...)
		}
		if len(r.tried) > 0 && r.mode != modeUrgent {
			if err := pause(ctx, c.cfg.RemovalInterval); err != nil {
				return passDone, errors.Join(append(errs, err)...)
			}
			if stop, next := c.shouldYield(r.mode, r.began); stop {
				return next, errors.Join(errs...)
			}
		}
		if ctx.Err() != nil {
			return passDone, errors.Join(append(errs, context.Cause(ctx))...)
		}
		err := c.remove(ctx, x)
		r.note(x, err)
		errs, removals = append(errs, err), removals+1
	}
	return passDone, errors.Join(errs...)
}

func (r *Removal) id() string {
	if r.Container != nil {
		return r.Container.ID
	}
	return r.Sandbox.ID
}

// note keeps count.
func (r *pass) note(x Removal, err error) {
	r.tried[x.id()] = true
	switch {
	case err != nil && x.Container != nil:
		r.tried[x.Container.SandboxID] = true // it would take the container with it
	case err != nil:
	case x.Container != nil:
		r.result.Containers++
	default:
		r.result.Sandboxes++
	}
}

// shouldYield says whether a collection that began then is to end before its plan
// does: tens of thousands of removals take minutes, and whoever is short of disk
// does the rest at once. For a Poke it is made again, with what is new in it.
func (c *Collector) shouldYield(m mode, began time.Time) (stop bool, then next) {
	if c.diskPressure.Load() > 0 {
		return true, passDone
	}
	if m != modePaced || time.Since(began) < yieldAfter {
		return false, passDone
	}
	select {
	case <-c.collectCh:
		return true, passYielded
	default:
		return false, passDone
	}
}

// remove removes one thing. A container's log goes first: were this process to end
// in between, nothing would lead to the log of a container that is no more.
func (c *Collector) remove(ctx context.Context, r Removal) error {
	began := time.Now()
	var err error
	if r.Container != nil {
		err = errors.Join(c.removeLog(r.Pod, r.Container),
			wrap("remove container "+r.Container.ID, c.cfg.Containers.RemoveContainer(ctx, r.Container.ID)))
	} else {
		err = wrap("remove sandbox "+r.Sandbox.ID, c.cfg.Containers.RemoveSandbox(ctx, r.Sandbox.ID))
	}
	if c.cfg.Hooks.Removed != nil {
		c.cfg.Hooks.Removed(r, time.Since(began), err)
	}
	return err
}

// wrap says what was tried. What is gone already is as good as removed.
func wrap(what string, err error) error {
	if err == nil || errors.Is(err, runtime.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
