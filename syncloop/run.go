package syncloop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// maxTurnAge is how old the last turn of a healthy loop is at most, how long a pod is
// due in one, and how long a housekeeping takes.
const maxTurnAge = 2 * time.Minute

// ErrStuck is wrapped by the error of Healthy when the loop has stopped turning, or
// does not do in its turns what they are for.
var ErrStuck = errors.New("the loop is stuck")

// runner is what one Run of a Loop owns. Only the loop's goroutine uses it.
type runner struct {
	*Loop
	gate   gate
	told   bool // that the gate is open
	checks chan check
	kept   chan kept    // what a housekeeping found; it has one slot
	busy   bool         // a housekeeping is under way
	stale  bool         // there is reason for another
	looked time.Time    // when the last one that looked at everything began
	tick   *time.Ticker // for housekeeping, and a sign of life
	due    *time.Timer
	wg     sync.WaitGroup
}

// kept is what a housekeeping came to.
type kept struct {
	again   []types.UID
	settled bool
}

// Run joins the streams until ctx is done or the configuration input is closed.
// It ends no pod. It is to be called once.
func (l *Loop) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &runner{
		Loop: l, checks: make(chan check), kept: make(chan kept, 1), stale: true,
		tick: time.NewTicker(l.cfg.Housekeeping), due: time.NewTimer(l.cfg.Housekeeping),
	}
	if w, ok := l.cfg.Keeper.(interface{ Wait() }); ok {
		defer w.Wait()
	}
	defer r.wg.Wait()
	defer cancel()
	defer r.tick.Stop()
	defer r.due.Stop()
	if l.cfg.Ready != nil {
		r.wg.Go(func() { l.watchRuntime(ctx, r.checks) })
	}
	r.rest()
	for {
		began, in, ok := time.Now(), Input(""), true
		safe.Do(l.cfg.Logger, "turn of the loop", func() { began, in, ok = r.turn(ctx) })
		if !ok {
			return nil
		}
		r.rest()
		if h := l.cfg.Hooks.Turned; h != nil {
			h(in, time.Since(began))
		}
	}
}

// turn waits for an input and handles it. It reports false when the loop is to end.
func (r *runner) turn(ctx context.Context) (began time.Time, in Input, ok bool) {
	// While the runtime is not ready, what cannot be handed on is left where it is.
	var (
		changes        <-chan podsource.Change
		events, probes <-chan struct{}
		due            <-chan time.Time
		soon           <-chan struct{}
	)
	if r.gate.open {
		changes, due = r.cfg.Changes, r.due.C
		if !r.busy {
			soon = r.soon
		}
		if r.cfg.Events != nil {
			events = r.cfg.Events.Notify()
		}
		if r.cfg.Probes != nil {
			probes = r.cfg.Probes.Notify()
		}
	}
	select {
	case <-ctx.Done():
		return began, in, false
	case c, open := <-changes:
		began, in, r.stale = time.Now(), InputChange, true
		if !open {
			r.cfg.Logger.Info("configuration input was closed")
			return began, in, false
		}
		r.cfg.Handler.Change(c)
	case <-events:
		began, in, r.stale = time.Now(), InputEvent, true
		r.events(r.cfg.Events.Drain())
	case <-probes:
		began, in = time.Now(), InputProbe
		for _, uid := range r.cfg.Probes.Drain() {
			r.cfg.Handler.Wake(uid, podworkers.WakeNow)
		}
	case <-r.wake: // setting the timer is all there is to do
		began, in = time.Now(), InputDue
	case <-due:
		began, in = time.Now(), InputDue
		for _, uid := range r.take(began) {
			r.cfg.Handler.Wake(uid, podworkers.WakeDue)
		}
	case <-r.tick.C:
		began, in = time.Now(), InputHousekeep
		if r.gate.open {
			r.cfg.Handler.Revisit(nil)
		}
		r.housekeep(ctx, began)
	case <-soon:
		began, in, r.stale = time.Now(), InputHousekeep, true
		ended := r.takeEnded()
		r.cfg.Handler.Revisit(ended)
		r.keep(func(k Keeper) kept { return kept{again: k.Tidy(ctx, ended)} })
	case k := <-r.kept:
		began, in = time.Now(), InputHousekeep
		r.busy = false
		r.keeping(time.Time{})
		r.stale = r.stale || !k.settled
		r.cfg.Handler.Again(k.again)
	case c := <-r.checks:
		began, in = time.Now(), InputRuntime
		r.gate.hear(c)
	}
	return began, in, true
}

// events wakes each pod that something happened to, once.
func (r *runner) events(events []pleg.Event) {
	var last types.UID
	for _, e := range events {
		// That a dead container was removed is nothing to act on; what makes a live
		// one go is told as its death. Events come pod by pod.
		if e.Kind == pleg.ContainerRemoved || e.UID == last {
			continue
		}
		last = e.UID
		r.cfg.Handler.Wake(e.UID, podworkers.WakeEvent)
	}
}

func (l *Loop) take(now time.Time) []types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dues.take(now)
}

func (l *Loop) takeEnded() []types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	ended := l.ended
	l.ended = nil
	return ended
}

// housekeep looks at everything, if there is reason to or it was long ago.
func (r *runner) housekeep(ctx context.Context, now time.Time) {
	if !r.stale && now.Sub(r.looked) < r.cfg.AtRest {
		return
	}
	if r.keep(func(k Keeper) kept {
		again, settled := k.Housekeep(ctx)
		return kept{again, settled}
	}) {
		r.stale, r.looked = false, now
	}
}

// keep starts a housekeeping beside the loop unless one is under way.
func (r *runner) keep(work func(Keeper) kept) (started bool) {
	if r.cfg.Keeper == nil || !r.gate.open || r.busy {
		return false
	}
	r.busy = true
	r.keeping(time.Now())
	r.wg.Go(func() {
		var k kept
		safe.Do(r.cfg.Logger, "housekeeping", func() { k = work(r.cfg.Keeper) })
		r.kept <- k
	})
	return true
}

// keeping notes since when a housekeeping is under way; zero: none is.
func (l *Loop) keeping(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeps = since
}

// rest ends a turn: it notes how the loop is and sets the timer of the next.
func (r *runner) rest() {
	now := time.Now()
	var fault error
	if r.cfg.Ready == nil {
		r.gate.open = true
	} else {
		fault = r.gate.judge(now, r.cfg.Patience)
	}
	if r.told != r.gate.open {
		r.told = r.gate.open
		r.cfg.Logger.Info("runtime readiness changed", slog.Bool("ready", r.gate.open), slog.Any("error", fault))
		if h := r.cfg.Hooks.RuntimeReady; h != nil {
			h(fault)
		}
	}
	r.mu.Lock()
	next := r.dues.next()
	if fault == nil && (r.fault != nil || r.since.IsZero()) {
		r.since = now
	}
	r.last, r.fault = now, fault
	r.mu.Unlock()
	if next.IsZero() {
		r.due.Stop()
	} else {
		r.due.Reset(next.Sub(now))
	}
}

// Healthy returns nil if the loop turns, hands pods on when they are due and keeps
// house. Its error wraps ErrStuck if the last turn is too long ago, if a pod has been
// due for too long or if a housekeeping does not end; ErrNotReady while the loop
// waits for the runtime.
func (l *Loop) Healthy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	age := now.Sub(l.last)
	switch {
	case l.last.IsZero():
		return fmt.Errorf("%w: it was not started", ErrStuck)
	case age > maxTurnAge:
		return fmt.Errorf("%w: the last turn ended %s ago", ErrStuck, age.Round(time.Second))
	case l.fault != nil:
		return l.fault
	}
	if late := l.dues.overdue(now.Add(-maxTurnAge)); late > 0 && now.Sub(l.since) > maxTurnAge {
		return fmt.Errorf("%w: pods have been due for more than %s: %d", ErrStuck, maxTurnAge, late)
	}
	if kept := now.Sub(l.keeps); !l.keeps.IsZero() && kept > maxTurnAge {
		return fmt.Errorf("%w: a housekeeping began %s ago and has not ended", ErrStuck, kept.Round(time.Second))
	}
	return nil
}

// LastTurn returns when the last turn of the loop ended; the zero time if there
// was none.
func (l *Loop) LastTurn() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
