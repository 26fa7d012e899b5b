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
	// transient is the back-off where the node is not ready yet: it soon may be.
	transient = time.Second
	// minDue keeps a Syncer that is always due from spinning.
	minDue = 10 * time.Millisecond
	// firstHold doubles with each failure in a row after the second, up to maxHold.
	firstHold = 100 * time.Millisecond
	maxHold   = time.Second
)

// want says how much a turn is wanted.
type want uint8

const (
	noTurn want = iota
	soon        // the runtime changed: once the hold-off after failures is over
	atOnce      // somebody asked
)

// life is all there is to know of one pod's life. It changes by the methods in
// this file alone, and they depend on nothing but it and their arguments.
type life struct {
	uid    types.UID
	name   string      // full name
	pod    *corev1.Pod // the newest that was asked for
	orphan bool        // known from the runtime only; pod is a stand-in
	static bool        // takes turns with others of its full name
	queued bool        // static, and its turn has not come yet

	phase    Phase
	cause    Cause
	ending   runtime.Ending // of no meaning while Syncing
	released bool           // the last Finish that succeeded knew that no source names it
	told     bool           // the last Finish that succeeded knew of its deletion timestamp
	restart  bool           // it was created again while it ended

	busy  bool      // a turn is under way
	want  want      // of the next turn: the mailbox
	asked time.Time // of the oldest request that no turn has begun to serve
	since time.Time // the next turn's view must be newer
	due   time.Time // when a turn is wanted without being asked for; zero: never
	fails int       // in a row
	hold  time.Time // until when a soon is held back
}

// effect is what a transition asks of the world.
type effect struct {
	uid    types.UID
	cancel error // not nil: end the turn under way, for this reason
	due    bool  // the due time changed
	moved  bool  // from one phase to another, because of why
	from   Phase
	to     Phase
	why    Cause
	killed bool // its containers have ended
	done   bool // it has finished
	freed  bool // it had finished, and what was kept until its deletion is gone too
	look   bool // the runtime may have changed: inspect the pod
}

// Reasons for which the context of a turn ends, to be had from context.Cause.
var (
	ErrEnding       = errors.New("the pod's end was asked for")
	ErrShorterGrace = errors.New("the pod was given a shorter grace period")
	ErrStopped      = errors.New("the workers are stopped")
)

// ready reports whether a turn is to begin.
func (l *life) ready() bool {
	return !l.busy && l.want == atOnce && !l.queued
}

// terminal reports whether the pod's own status says that it is done for good.
func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// ask takes a request that something be done, made at a time.
func (l *life) ask(w want, at time.Time) {
	l.want = max(l.want, w)
	if l.asked.IsZero() || at.Before(l.asked) {
		l.asked = at
	}
}

// update takes a newer pod.
func (l *life) update(u Update, now time.Time) effect {
	e := effect{uid: l.uid}
	if l.orphan || l.phase != Syncing && u.Op == Create {
		// This is the pod as it will be. The one that ends stays what it was.
		l.restart = true
		return e
	}
	l.pod = u.Pod
	if l.phase == Finished {
		if l.owesEnd() {
			l.ask(atOnce, u.At)
		}
		return e
	}
	switch {
	case l.phase == Syncing && u.Pod.DeletionTimestamp != nil:
		l.begin(Deletion, &e)
	case l.phase == Syncing && terminal(u.Pod):
		l.begin(Completed, &e)
	case l.phase == Terminating && u.Pod.DeletionTimestamp != nil:
		l.shorten(min(l.ending.Grace, ownGrace(u.Pod)), &e)
	}
	if l.phase == Finished { // it ended before its turn had come
		return e
	}
	if u.Op == Reconcile {
		l.wake(soon, u.At, now, &e)
	} else {
		l.ask(atOnce, u.At)
	}
	return e
}

// owesEnd reports whether the pod has a deletion timestamp of which the last Finish
// did not know: whoever set it waits to be told that the pod has ended.
func (l *life) owesEnd() bool { return l.pod.DeletionTimestamp != nil && !l.told }

// kill takes a request to end.
func (l *life) kill(k Kill, at time.Time) effect {
	e := effect{uid: l.uid}
	if l.phase < Terminated { // later, its last status is out
		if l.ending.Reason == "" {
			l.ending.Reason, l.ending.Message = k.Reason, k.Message
		}
		l.ending.Evicted = l.ending.Evicted || k.Evicted
	}
	if k.Deleted {
		l.ending.Deleted, l.restart = true, false
	}
	if k.Deleted || k.Evicted || k.Reason != "" {
		l.ending.Drained = false
	}
	switch l.phase {
	case Syncing:
		l.ending.Drained = k.Drained && !k.Deleted && !k.Evicted && k.Reason == ""
		l.begin(k.cause(), &e)
		// Nothing is under way in this grace yet, so that the cancellation is for
		// the end and not for a shorter grace.
		l.ending.Grace = k.shorter(l.ending.Grace)
	case Terminating:
		l.shorten(k.shorter(l.ending.Grace), &e)
	case Terminated, Finished: // nothing runs that a grace could be for
	}
	if l.phase == Finished && (l.released || !l.ending.Deleted) {
		return e
	}
	l.ask(atOnce, at)
	return e
}

func (k Kill) cause() Cause {
	switch {
	case k.Evicted:
		return Evicted
	case k.Deleted:
		return Removed
	}
	return Killed
}

// begin starts the end of the pod's life.
func (l *life) begin(cause Cause, e *effect) {
	l.cause = cause
	l.ending.Grace = ownGrace(l.pod)
	l.fails, l.hold = 0, time.Time{}
	if l.queued { // it never ran and never will: there is nothing to end
		l.queued, l.released, l.told, l.want, l.asked = false, true, true, noTurn, time.Time{}
		l.moveTo(Finished, e)
		e.killed, e.done = true, true
		return
	}
	l.moveTo(Terminating, e)
	l.want = atOnce
	if l.busy {
		e.cancel = ErrEnding
	}
}

func (l *life) moveTo(p Phase, e *effect) {
	e.moved, e.from, e.to, e.why = true, l.phase, p, l.cause
	l.phase = p
	l.setDue(time.Time{}, e)
}

// shorten makes the grace shorter, never longer.
func (l *life) shorten(grace time.Duration, e *effect) {
	if grace >= l.ending.Grace {
		return
	}
	l.ending.Grace = grace
	l.want = atOnce
	if l.busy {
		e.cancel = ErrShorterGrace
	}
}

func (l *life) setDue(at time.Time, e *effect) {
	if !at.Equal(l.due) {
		l.due, e.due = at, true
	}
}

// nudge takes a reason to look at the pod again.
func (l *life) nudge(why Wake, now time.Time) effect {
	e := effect{uid: l.uid}
	if l.phase == Finished && l.want == noTurn && l.due.IsZero() {
		return e
	}
	switch why {
	case WakeDue:
		if !l.due.IsZero() && !now.Before(l.due) {
			l.setDue(time.Time{}, &e)
			l.ask(atOnce, now)
		}
	case WakeNow:
		l.ask(atOnce, now)
	case WakeEvent:
		l.wake(soon, now, now, &e)
	}
	return e
}

// wake notes a want and lets it through if nothing holds it back.
func (l *life) wake(w want, at, now time.Time, e *effect) {
	l.ask(w, at)
	if l.busy {
		return // the end of the turn sees to it
	}
	l.letThrough(now, e)
}

// letThrough turns soon into atOnce, or into a time when it will be.
func (l *life) letThrough(now time.Time, e *effect) {
	switch {
	case l.want != soon:
	case !now.Before(l.hold):
		l.want = atOnce
	case l.due.IsZero() || l.hold.Before(l.due):
		l.setDue(l.hold, e)
	}
}

// Turn is one call of the Syncer.
type Turn struct {
	UID types.UID
	Pod *corev1.Pod
	// Phase says which call it is: Sync in Syncing, Terminate in Terminating,
	// Finish in the others.
	Phase  Phase
	Ending runtime.Ending // of no meaning in Syncing
	Since  time.Time      // the view must be newer; zero: any will do
	Asked  time.Time      // of the oldest request that it serves; zero: none
	Orphan bool           // Pod is a stand-in
}

// start begins the turn that is wanted.
func (l *life) start() Turn {
	t := Turn{
		UID: l.uid, Pod: l.pod, Phase: l.phase, Ending: l.ending,
		Since: l.since, Asked: l.asked, Orphan: l.orphan,
	}
	l.busy, l.want, l.asked, l.due = true, noTurn, time.Time{}, time.Time{}
	return t
}

// end takes what turn t came to.
func (l *life) end(t Turn, out runtime.Outcome, err error, p policy, now time.Time) effect {
	e := effect{uid: l.uid, look: true}
	l.busy = false
	out.Due = monotonic.At(out.Due, now)
	if t.Phase != Syncing || err != nil || !out.Quiet {
		l.since = now
	}
	switch {
	case t.Phase == Syncing && l.phase != Syncing:
		// The turn was overtaken. What it came to is of no interest any more.
	case err != nil:
		l.fail(err, out.Due, p, now, &e)
	case t.Phase == Syncing:
		l.synced(out, p, now, &e)
	case t.Phase == Terminating:
		l.terminated(&e)
	default:
		l.finished(t, &e)
	}
	l.letThrough(now, &e)
	return e
}

func (l *life) synced(out runtime.Outcome, p policy, now time.Time, e *effect) {
	l.fails, l.hold = 0, time.Time{}
	if out.Terminal {
		l.begin(Completed, e)
		return
	}
	e.look = !out.Quiet
	due := p.next(now)
	if !out.Due.IsZero() && out.Due.Before(due) {
		due = later(out.Due, now.Add(minDue))
	}
	l.setDue(due, e)
}

// together is the grid on which pods of which nothing is heard are due, so that a
// machine on which nothing happens is not woken for each of them.
const together = time.Second

// next is when a pod is due of which nothing is heard. It is put on the grid as far
// as that does not shorten the time to less than it has to be.
func (p policy) next(now time.Time) time.Time {
	due := now.Add(p.jitter(p.resync))
	whole := due.Add(due.Truncate(together).Sub(due)) // it keeps the monotonic reading
	if whole.Before(now.Add(p.resync)) {
		return due
	}
	return whole
}

func (l *life) terminated(e *effect) {
	l.fails, l.hold = 0, time.Time{}
	e.killed, e.look = true, false
	if l.orphan {
		l.released, l.want = true, noTurn
		l.moveTo(Finished, e)
		e.done = true
		return
	}
	l.moveTo(Terminated, e)
	l.want = atOnce
}

func (l *life) finished(t Turn, e *effect) {
	l.fails, l.hold = 0, time.Time{}
	e.look = false
	l.released = t.Ending.Deleted
	l.want = noTurn
	l.told = t.Pod.DeletionTimestamp != nil
	if l.ending.Deleted && !l.released || l.owesEnd() { // deleted meanwhile: more is to go, or to be told
		l.want = atOnce
	}
	if l.phase != Finished {
		l.moveTo(Finished, e)
		e.done = true
	} else {
		e.freed = l.released
	}
}

// fail plans the next try. A turn that was ended for another one is no failure.
func (l *life) fail(err error, due time.Time, p policy, now time.Time, e *effect) {
	if l.want == atOnce {
		return
	}
	l.fails++
	l.hold = now.Add(holdAfter(l.fails))
	wait := p.backOff
	if errors.Is(err, runtime.ErrNotReady) {
		wait = min(wait, transient)
	}
	next := now.Add(p.jitter(wait))
	if !due.IsZero() && due.Before(next) {
		next = later(due, later(l.hold, now.Add(minDue)))
	}
	l.setDue(next, e)
}

// holdAfter is how long a change in the runtime is no reason for another try
// after so many failures in a row. The first is free: what the failed turn left
// behind is acted on at once.
func holdAfter(fails int) time.Duration {
	if fails < 2 {
		return 0
	}
	return min(firstHold<<min(fails-2, 10), maxHold)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
