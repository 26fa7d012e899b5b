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

// maxIterationAge is how old the last turn of a healthy loop is at most, how long a pod is
// due in one, and how long a housekeeping takes.
const maxIterationAge = 2 * time.Minute

// ErrStalled is wrapped by the error of Healthy when the loop has stopped turning, or
// does not do in its turns what they are for.
var ErrStalled = errors.New("the loop is stuck")

// runner is what one Run of a Loop owns. Only the loop's goroutine uses it.
type runner struct {
	*Loop
	gate            runtimeHealth
	lastLoggedReady bool // that the gate is open
	checks          chan check
	cleanupDone     chan cleanupResult // what a housekeeping found; it has one slot
	cleaningUp      bool               // a housekeeping is under way
	cleanupNeeded   bool               // there is reason for another
	lastCleanupAt   time.Time          // when the last one that looked at everything began
	tick            *time.Ticker       // for housekeeping, and a sign of life
	due             *time.Timer
	wg              sync.WaitGroup
}

// cleanupResult is what a housekeeping came to.
type cleanupResult struct {
	recreated []types.UID
	settled   bool
}

// Run joins the streams until ctx is done or the configuration input is closed.
// It ends no pod. It is to be called once.
func (l *Loop) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &runner{
		Loop: l, checks: make(chan check), cleanupDone: make(chan cleanupResult, 1), cleanupNeeded: true,
		tick: time.NewTicker(l.cfg.HousekeepingPeriod), due: time.NewTimer(l.cfg.HousekeepingPeriod),
	}
	if w, ok := l.cfg.Cleaner.(interface{ Wait() }); ok {
		defer w.Wait()
	}
	defer r.wg.Wait()
	defer cancel()
	defer r.tick.Stop()
	defer r.due.Stop()
	if l.cfg.RuntimeReady != nil {
		r.wg.Go(func() { l.watchRuntime(ctx, r.checks) })
	}
	r.resetTimers()
	for {
		began, in, ok := time.Now(), Input(""), true
		safe.Do(l.cfg.Logger, "turn of the loop", func() { began, in, ok = r.iterate(ctx) })
		if !ok {
			return nil
		}
		r.resetTimers()
		if h := l.cfg.Hooks.IterationEnded; h != nil {
			h(in, time.Since(began))
		}
	}
}

// iterate waits for an input and handles it. It reports false when the loop is to end.
func (r *runner) iterate(ctx context.Context) (began time.Time, in Input, ok bool) {
	// While the runtime is not ready, what cannot be handed on is left where it is.
	var (
		changes        <-chan podsource.Change
		events, probes <-chan struct{}
		due            <-chan time.Time
		soon           <-chan struct{}
	)
	if r.gate.ready {
		changes, due = r.cfg.Changes, r.due.C
		if !r.cleaningUp {
			soon = r.finishedCh
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
		began, in, r.cleanupNeeded = time.Now(), InputChange, true
		if !open {
			r.cfg.Logger.Info("configuration input was closed")
			return began, in, false
		}
		r.cfg.Handler.HandlePodChange(c)
	case <-events:
		began, in, r.cleanupNeeded = time.Now(), InputEvent, true
		r.events(r.cfg.Events.Drain())
	case <-probes:
		began, in = time.Now(), InputProbe
		for _, uid := range r.cfg.Probes.Drain() {
			r.cfg.Handler.HandlePodSync(uid, podworkers.RequeueNow)
		}
	case <-r.wake: // setting the timer is all there is to do
		began, in = time.Now(), InputRequeue
	case <-due:
		began, in = time.Now(), InputRequeue
		for _, uid := range r.take(began) {
			r.cfg.Handler.HandlePodSync(uid, podworkers.RequeueDue)
		}
	case <-r.tick.C:
		began, in = time.Now(), InputHousekeeping
		if r.gate.ready {
			r.cfg.Handler.Revisit(nil)
		}
		r.housekeep(ctx, began)
	case <-soon:
		began, in, r.cleanupNeeded = time.Now(), InputHousekeeping, true
		ended := r.takeEnded()
		r.cfg.Handler.Revisit(ended)
		r.cleanup(func(k Cleaner) cleanupResult { return cleanupResult{recreated: k.CleanupFinished(ctx, ended)} })
	case k := <-r.cleanupDone:
		began, in = time.Now(), InputHousekeeping
		r.cleaningUp = false
		r.keeping(time.Time{})
		r.cleanupNeeded = r.cleanupNeeded || !k.settled
		r.cfg.Handler.HandlePodRecreations(k.recreated)
	case c := <-r.checks:
		began, in = time.Now(), InputRuntime
		r.gate.record(c)
	}
	return began, in, true
}

// events wakes each pod that something happened to, once.
func (r *runner) events(events []pleg.Event) {
	var last types.UID
	for _, e := range events {
		// That a dead container was removed is nothing to act on; what makes a live
		// one go is told as its death. Events come pod by pod.
		if e.Type == pleg.ContainerRemoved || e.UID == last {
			continue
		}
		last = e.UID
		r.cfg.Handler.HandlePodSync(e.UID, podworkers.RequeueEvent)
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
	if !r.cleanupNeeded && now.Sub(r.lastCleanupAt) < r.cfg.IdleHousekeepingPeriod {
		return
	}
	if r.cleanup(func(k Cleaner) cleanupResult {
		again, settled := k.CleanupPods(ctx)
		return cleanupResult{again, settled}
	}) {
		r.cleanupNeeded, r.lastCleanupAt = false, now
	}
}

// cleanup starts a housekeeping beside the loop unless one is under way.
func (r *runner) cleanup(work func(Cleaner) cleanupResult) (started bool) {
	if r.cfg.Cleaner == nil || !r.gate.ready || r.cleaningUp {
		return false
	}
	r.cleaningUp = true
	r.keeping(time.Now())
	r.wg.Go(func() {
		var k cleanupResult
		safe.Do(r.cfg.Logger, "housekeeping", func() { k = work(r.cfg.Cleaner) })
		r.cleanupDone <- k
	})
	return true
}

// keeping notes since when a housekeeping is under way; zero: none is.
func (l *Loop) keeping(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keeps = since
}

// resetTimers ends a turn: it notes how the loop is and sets the timer of the next.
func (r *runner) resetTimers() {
	now := time.Now()
	var fault error
	if r.cfg.RuntimeReady == nil {
		r.gate.ready = true
	} else {
		fault = r.gate.evaluate(now, r.cfg.RuntimeSyncThreshold)
	}
	if r.lastLoggedReady != r.gate.ready {
		r.lastLoggedReady = r.gate.ready
		r.cfg.Logger.Info("runtime readiness changed", slog.Bool("ready", r.gate.ready), slog.Any("error", fault))
		if h := r.cfg.Hooks.RuntimeReadyChanged; h != nil {
			h(fault)
		}
	}
	r.mu.Lock()
	next := r.dues.next()
	if fault == nil && (r.runtimeErr != nil || r.since.IsZero()) {
		r.since = now
	}
	r.last, r.runtimeErr = now, fault
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
		return fmt.Errorf("%w: it was not started", ErrStalled)
	case age > maxIterationAge:
		return fmt.Errorf("%w: the last turn ended %s ago", ErrStalled, age.Round(time.Second))
	case l.runtimeErr != nil:
		return l.runtimeErr
	}
	if late := l.dues.overdue(now.Add(-maxIterationAge)); late > 0 && now.Sub(l.since) > maxIterationAge {
		return fmt.Errorf("%w: pods have been due for more than %s: %d", ErrStalled, maxIterationAge, late)
	}
	if kept := now.Sub(l.keeps); !l.keeps.IsZero() && kept > maxIterationAge {
		return fmt.Errorf("%w: a housekeeping began %s ago and has not ended", ErrStalled, kept.Round(time.Second))
	}
	return nil
}

// LastIteration returns when the last turn of the loop ended; the zero time if there
// was none.
func (l *Loop) LastIteration() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
