package podworkers

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/runtime"
)

// policy is what the transitions go by besides what happened.
type policy struct {
	resync  time.Duration
	backOff time.Duration
	jitter  func(time.Duration) time.Duration // returns at least what it is given
}

// Limits of how soon a pod is looked at again.
const (
	// transientBackOff is the back-off where the node is not ready yet: it soon may be.
	transientBackOff = time.Second
	// minDue keeps a Syncer that is always due from spinning.
	minDue = 10 * time.Millisecond
	// minEventDelay doubles with each failure in a row after the second, up to maxHold.
	minEventDelay = 100 * time.Millisecond
	maxEventDelay = time.Second
)

// urgency says how much a turn is wanted.
type urgency uint8

const (
	notRequested urgency = iota
	deferrable           // the runtime changed: once the hold-off after failures is over
	immediate            // somebody asked
)

// podState is all there is to know of one pod's life. It changes by the methods in
// this file alone, and they depend on nothing but it and their arguments.
type podState struct {
	uid    types.UID
	name   string      // full name
	pod    *corev1.Pod // the newest that was asked for
	orphan bool        // known from the runtime only; pod is a stand-in
	static bool        // takes turns with others of its full name
	queued bool        // static, and its turn has not come yet

	phase             Phase
	cause             Cause
	termination       runtime.Termination // of no meaning while Syncing
	resourcesReleased bool                // the last Finish that succeeded knew that no source names it
	told              bool                // the last Finish that succeeded knew of its deletion timestamp
	recreate          bool                // it was created again while it ended

	working     bool      // a turn is under way
	urgency     urgency   // of the next turn: the mailbox
	requestedAt time.Time // of the oldest request that no turn has begun to serve
	newerThan   time.Time // the next turn's view must be newer
	requeueAt   time.Time // when a turn is wanted without being asked for; zero: never
	failures    int       // in a row
	deferUntil  time.Time // until when a soon is held back
}

// effect is what a transition asks of the world.
type effect struct {
	uid                types.UID
	cancel             error // not nil: end the turn under way, for this reason
	due                bool  // the due time changed
	moved              bool  // from one phase to another, because of why
	from               Phase
	to                 Phase
	cause              Cause
	killed             bool // its containers have ended
	done               bool // it has finished
	deletedAfterFinish bool // it had finished, and what was kept until its deletion is gone too
	inspect            bool // the runtime may have changed: inspect the pod
}

// Reasons for which the context of a turn ends, to be had from context.Cause.
var (
	ErrTerminating          = errors.New("the pod's end was asked for")
	ErrGracePeriodShortened = errors.New("the pod was given a shorter grace period")
	ErrStopped              = errors.New("the workers are stopped")
)

// shouldStartSync reports whether a turn is to begin.
func (l *podState) shouldStartSync() bool {
	return !l.working && l.urgency == immediate && !l.queued
}

// terminal reports whether the pod's own status says that it is done for good.
func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// request takes a request that something be done, made at a time.
func (l *podState) request(w urgency, at time.Time) {
	l.urgency = max(l.urgency, w)
	if l.requestedAt.IsZero() || at.Before(l.requestedAt) {
		l.requestedAt = at
	}
}

// update takes a newer pod.
func (l *podState) update(u Update, now time.Time) effect {
	e := effect{uid: l.uid}
	if l.orphan || l.phase != Syncing && u.Type == PodCreate {
		// This is the pod as it will be. The one that ends stays what it was.
		l.recreate = true
		return e
	}
	l.pod = u.Pod
	if l.phase == Finished {
		if l.owesEnd() {
			l.request(immediate, u.StartTime)
		}
		return e
	}
	switch {
	case l.phase == Syncing && u.Pod.DeletionTimestamp != nil:
		l.beginTermination(Deleted, &e)
	case l.phase == Syncing && terminal(u.Pod):
		l.beginTermination(Completed, &e)
	case l.phase == Terminating && u.Pod.DeletionTimestamp != nil:
		l.shortenGracePeriod(min(l.termination.GracePeriod, ownGrace(u.Pod)), &e)
	}
	if l.phase == Finished { // it ended before its turn had come
		return e
	}
	if u.Type == PodReconcile {
		l.requestOrDefer(deferrable, u.StartTime, now, &e)
	} else {
		l.request(immediate, u.StartTime)
	}
	return e
}

// owesEnd reports whether the pod has a deletion timestamp of which the last Finish
// did not know: whoever set it waits to be told that the pod has ended.
func (l *podState) owesEnd() bool { return l.pod.DeletionTimestamp != nil && !l.told }

// kill takes a request to end.
func (l *podState) kill(k KillOptions, at time.Time) effect {
	e := effect{uid: l.uid}
	if l.phase < Terminated { // later, its last status is out
		if l.termination.Reason == "" {
			l.termination.Reason, l.termination.Message = k.Reason, k.Message
		}
		l.termination.Evicted = l.termination.Evicted || k.Evicted
	}
	if k.Deleted {
		l.termination.Deleted, l.recreate = true, false
	}
	if k.Deleted || k.Evicted || k.Reason != "" {
		l.termination.Drained = false
	}
	switch l.phase {
	case Syncing:
		l.termination.Drained = k.Drained && !k.Deleted && !k.Evicted && k.Reason == ""
		l.beginTermination(k.cause(), &e)
		// Nothing is under way in this grace yet, so that the cancellation is for
		// the end and not for a shorter grace.
		l.termination.GracePeriod = k.shorter(l.termination.GracePeriod)
	case Terminating:
		l.shortenGracePeriod(k.shorter(l.termination.GracePeriod), &e)
	case Terminated, Finished: // nothing runs that a grace could be for
	}
	if l.phase == Finished && (l.resourcesReleased || !l.termination.Deleted) {
		return e
	}
	l.request(immediate, at)
	return e
}

func (k KillOptions) cause() Cause {
	switch {
	case k.Evicted:
		return Evicted
	case k.Deleted:
		return Removed
	}
	return Killed
}

// beginTermination starts the end of the pod's life.
func (l *podState) beginTermination(cause Cause, e *effect) {
	l.cause = cause
	l.termination.GracePeriod = ownGrace(l.pod)
	l.failures, l.deferUntil = 0, time.Time{}
	if l.queued { // it never ran and never will: there is nothing to end
		l.queued, l.resourcesReleased, l.told, l.urgency, l.requestedAt = false, true, true, notRequested, time.Time{}
		l.moveTo(Finished, e)
		e.killed, e.done = true, true
		return
	}
	l.moveTo(Terminating, e)
	l.urgency = immediate
	if l.working {
		e.cancel = ErrTerminating
	}
}

func (l *podState) moveTo(p Phase, e *effect) {
	e.moved, e.from, e.to, e.cause = true, l.phase, p, l.cause
	l.phase = p
	l.setDue(time.Time{}, e)
}

// shortenGracePeriod makes the grace shorter, never longer.
func (l *podState) shortenGracePeriod(grace time.Duration, e *effect) {
	if grace >= l.termination.GracePeriod {
		return
	}
	l.termination.GracePeriod = grace
	l.urgency = immediate
	if l.working {
		e.cancel = ErrGracePeriodShortened
	}
}

func (l *podState) setDue(at time.Time, e *effect) {
	if !at.Equal(l.requeueAt) {
		l.requeueAt, e.due = at, true
	}
}

// requeue takes a reason to look at the pod again.
func (l *podState) requeue(why RequeueReason, now time.Time) effect {
	e := effect{uid: l.uid}
	if l.phase == Finished && l.urgency == notRequested && l.requeueAt.IsZero() {
		return e
	}
	switch why {
	case RequeueDue:
		if !l.requeueAt.IsZero() && !now.Before(l.requeueAt) {
			l.setDue(time.Time{}, &e)
			l.request(immediate, now)
		}
	case RequeueNow:
		l.request(immediate, now)
	case RequeueEvent:
		l.requestOrDefer(deferrable, now, now, &e)
	}
	return e
}

// requestOrDefer notes a want and lets it through if nothing holds it back.
func (l *podState) requestOrDefer(w urgency, at, now time.Time, e *effect) {
	l.request(w, at)
	if l.working {
		return // the end of the turn sees to it
	}
	l.promoteDeferred(now, e)
}

// promoteDeferred turns soon into atOnce, or into a time when it will be.
func (l *podState) promoteDeferred(now time.Time, e *effect) {
	switch {
	case l.urgency != deferrable:
	case !now.Before(l.deferUntil):
		l.urgency = immediate
	case l.requeueAt.IsZero() || l.deferUntil.Before(l.requeueAt):
		l.setDue(l.deferUntil, e)
	}
}

// SyncCall is one call of the Syncer.
type SyncCall struct {
	UID types.UID
	Pod *corev1.Pod
	// Phase says which call it is: Sync in Syncing, Terminate in Terminating,
	// Finish in the others.
	Phase       Phase
	Termination runtime.Termination // of no meaning in Syncing
	NewerThan   time.Time           // the view must be newer; zero: any will do
	RequestedAt time.Time           // of the oldest request that it serves; zero: none
	Orphan      bool                // Pod is a stand-in
}

// start begins the turn that is wanted.
func (l *podState) start() SyncCall {
	t := SyncCall{
		UID: l.uid, Pod: l.pod, Phase: l.phase, Termination: l.termination,
		NewerThan: l.newerThan, RequestedAt: l.requestedAt, Orphan: l.orphan,
	}
	l.working, l.urgency, l.requestedAt, l.requeueAt = true, notRequested, time.Time{}, time.Time{}
	return t
}

// end takes what turn t came to.
func (l *podState) end(t SyncCall, out runtime.SyncResult, err error, p policy, now time.Time) effect {
	e := effect{uid: l.uid, inspect: true}
	l.working = false
	out.RequeueAt = monotonic.At(out.RequeueAt, now)
	if t.Phase != Syncing || err != nil || !out.Unchanged {
		l.newerThan = now
	}
	switch {
	case t.Phase == Syncing && l.phase != Syncing:
		// The turn was overtaken. What it came to is of no interest any more.
	case err != nil:
		l.fail(err, out.RequeueAt, p, now, &e)
	case t.Phase == Syncing:
		l.synced(out, p, now, &e)
	case t.Phase == Terminating:
		l.terminated(&e)
	default:
		l.finished(t, &e)
	}
	l.promoteDeferred(now, &e)
	return e
}

func (l *podState) synced(out runtime.SyncResult, p policy, now time.Time, e *effect) {
	l.failures, l.deferUntil = 0, time.Time{}
	if out.Terminal {
		l.beginTermination(Completed, e)
		return
	}
	e.inspect = !out.Unchanged
	due := p.next(now)
	if !out.RequeueAt.IsZero() && out.RequeueAt.Before(due) {
		due = later(out.RequeueAt, now.Add(minDue))
	}
	l.setDue(due, e)
}

// mergeWindow is the grid on which pods of which nothing is heard are due, so that a
// machine on which nothing happens is not woken for each of them.
const mergeWindow = time.Second

// next is when a pod is due of which nothing is heard. It is put on the grid as far
// as that does not shorten the time to less than it has to be.
func (p policy) next(now time.Time) time.Time {
	due := now.Add(p.jitter(p.resync))
	whole := due.Add(due.Truncate(mergeWindow).Sub(due)) // it keeps the monotonic reading
	if whole.Before(now.Add(p.resync)) {
		return due
	}
	return whole
}

func (l *podState) terminated(e *effect) {
	l.failures, l.deferUntil = 0, time.Time{}
	e.killed, e.inspect = true, false
	if l.orphan {
		l.resourcesReleased, l.urgency = true, notRequested
		l.moveTo(Finished, e)
		e.done = true
		return
	}
	l.moveTo(Terminated, e)
	l.urgency = immediate
}

func (l *podState) finished(t SyncCall, e *effect) {
	l.failures, l.deferUntil = 0, time.Time{}
	e.inspect = false
	l.resourcesReleased = t.Termination.Deleted
	l.urgency = notRequested
	l.told = t.Pod.DeletionTimestamp != nil
	if l.termination.Deleted && !l.resourcesReleased || l.owesEnd() { // deleted meanwhile: more is to go, or to be told
		l.urgency = immediate
	}
	if l.phase != Finished {
		l.moveTo(Finished, e)
		e.done = true
	} else {
		e.deletedAfterFinish = l.resourcesReleased
	}
}

// fail plans the next try. A turn that was ended for another one is no failure.
func (l *podState) fail(err error, due time.Time, p policy, now time.Time, e *effect) {
	if l.urgency == immediate {
		return
	}
	l.failures++
	l.deferUntil = now.Add(eventDelay(l.failures))
	wait := p.backOff
	if errors.Is(err, runtime.ErrNotReady) {
		wait = min(wait, transientBackOff)
	}
	next := now.Add(p.jitter(wait))
	if !due.IsZero() && due.Before(next) {
		next = later(due, later(l.deferUntil, now.Add(minDue)))
	}
	l.setDue(next, e)
}

// eventDelay is how long a change in the runtime is no reason for another try
// after so many failures in a row. The first is free: what the failed turn left
// behind is acted on at once.
func eventDelay(fails int) time.Duration {
	if fails < 2 {
		return 0
	}
	return min(minEventDelay<<min(fails-2, 10), maxEventDelay)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
