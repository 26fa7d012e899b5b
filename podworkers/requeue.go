package podworkers

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// policy configures when calls are due.
type policy struct {
	origin        time.Time // from which resyncs are aligned, so that equal ones are equal to the nanosecond
	resyncPeriod  time.Duration
	settledPeriod time.Duration // resyncPeriod of a settled pod
	backOff       time.Duration
	spread        float64                           // by what share of its argument jitter may lengthen it
	jitter        func(time.Duration) time.Duration // never shortens its argument
}

// Bounds of the time until the next call.
const (
	// transientBackOff is the back-off after runtime.ErrNotReady, which does not
	// last long.
	transientBackOff = time.Second
	// minRequeueDelay prevents a busy loop of a Syncer that is always due.
	minRequeueDelay = 10 * time.Millisecond
	// minEventDelay doubles with each consecutive failure after the second, up to
	// maxEventDelay.
	minEventDelay = 100 * time.Millisecond
	maxEventDelay = time.Second
	// mergeWindow aligns resyncs, so that an idle machine does not wake up for each
	// pod. It is longer if the jitter would contain more than maxWindows: the more pods are
	// resynced together, the less of the memory that is used was not used for long.
	mergeWindow = 5 * time.Second
	maxWindows  = 10
)

func (s *podState) setRequeueAt(at time.Time, e *effect) {
	if !at.Equal(s.requeueAt) {
		s.requeueAt, e.requeue = at, true
	}
}

// requeue records a reason for another call.
func (s *podState) requeue(reason RequeueReason, now time.Time) effect {
	e := effect{uid: s.uid}
	if s.phase == Finished && s.requeueAt.IsZero() {
		return e
	}
	switch reason {
	case RequeueNow:
		s.request(immediate, now)
	case RequeueEvent:
		s.requestOrDefer(deferrable, now, now, &e)
	}
	return e
}

// requeueDue makes the pod due for a call if requeueAt has come.
func (s *podState) requeueDue(now time.Time) effect {
	e := effect{uid: s.uid}
	if !s.requeueAt.IsZero() && !now.Before(s.requeueAt) {
		s.setRequeueAt(time.Time{}, &e)
		s.request(immediate, now)
	}
	return e
}

// requestOrDefer records a request and makes it immediate if nothing defers it.
func (s *podState) requestOrDefer(u urgency, at, now time.Time, e *effect) {
	s.request(u, at)
	if s.working {
		return // complete promotes it
	}
	s.promoteDeferred(now, e)
}

// promoteDeferred makes a deferrable request immediate, or sets the time when it
// becomes so.
func (s *podState) promoteDeferred(now time.Time, e *effect) {
	switch {
	case s.urgency != deferrable:
	case !now.Before(s.deferUntil):
		s.urgency = immediate
	case s.requeueAt.IsZero() || s.deferUntil.Before(s.requeueAt):
		s.setRequeueAt(s.deferUntil, e)
	}
}

// nextResync returns when a pod without requests is due: between its resync period and the
// longest that jitter makes of it. If that leaves a choice, resyncs are aligned to a window, and pods of one cohort
// choose the same one, even if they were not synced together before.
func (p policy) nextResync(settled bool, cohort uint32, now time.Time) time.Time {
	period := p.resyncPeriod
	if settled {
		period = p.settledPeriod
	}
	spread := time.Duration(p.spread * float64(period))
	if spread < 2*mergeWindow {
		return now.Add(p.jitter(period))
	}
	earliest := now.Add(period).Sub(p.origin)
	window := max(mergeWindow, spread/maxWindows)
	first, last := int64((earliest+window-1)/window), int64((earliest+spread)/window)
	best, lowest := first, rank(cohort, first)
	for w := first + 1; w <= last; w++ {
		if r := rank(cohort, w); r < lowest {
			best, lowest = w, r
		}
	}
	return p.origin.Add(time.Duration(best) * window) // keeps the monotonic reading
}

// rank orders windows randomly, in an order of each cohort's own.
func rank(cohort uint32, window int64) uint64 {
	return rand.NewPCG(uint64(cohort), uint64(window)).Uint64()
}

// fail schedules the next attempt. A call that was cancelled for another one is
// not a failure.
func (s *podState) fail(err error, requeueAt time.Time, p policy, now time.Time, e *effect) {
	if s.urgency == immediate {
		return
	}
	s.failures++
	s.deferUntil = now.Add(eventDelay(s.failures))
	backOff := p.backOff
	if errors.Is(err, runtime.ErrNotReady) {
		backOff = min(backOff, transientBackOff)
	}
	next := now.Add(p.jitter(backOff))
	if !requeueAt.IsZero() && requeueAt.Before(next) {
		next = later(requeueAt, later(s.deferUntil, now.Add(minRequeueDelay)))
	}
	s.setRequeueAt(next, e)
}

// eventDelay returns how long changes in the runtime are deferred after the given
// number of consecutive failures. It is zero after the first one: the changes that
// the failed call made are handled at once.
func eventDelay(failures int) time.Duration {
	if failures < 2 {
		return 0
	}
	return min(minEventDelay<<min(failures-2, 10), maxEventDelay)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
