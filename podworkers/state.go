package podworkers

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// urgency is how urgent the next call for a pod is.
type urgency uint8

const (
	notRequested urgency = iota
	deferrable           // the pod changed in the runtime: due after the delay for failures
	immediate            // explicitly requested
)

// podState is the state machine of one pod. Only the methods in state.go and
// requeue.go change it, and they depend on nothing but it and their arguments.
type podState struct {
	uid            types.UID
	cohort         uint32 // of pods that were added one after the other
	fullName       string
	pod            *corev1.Pod // the newest desired one
	orphan         bool        // found in the runtime only; pod is made from what the runtime reports
	static         bool        // runs one at a time with others of its full name
	waitingToStart bool        // static, and another pod of its name has not finished

	phase             Phase
	cause             Cause
	termination       runtime.Termination // not set while Syncing
	resourcesReleased bool                // the last successful Finish had Termination.Deleted
	deletionHandled   bool                // the last successful Finish had a pod with a deletion timestamp
	recreate          bool                // the pod was added again during termination

	working     bool      // a call is under way
	urgency     urgency   // of the next call: a mailbox with one slot
	requestedAt time.Time // of the oldest request that no call has served
	newerThan   time.Time // the next call needs a newer observed state
	requeueAt   time.Time // when a call is due without a request; zero: never
	failures    int       // consecutive
	deferUntil  time.Time // until when deferrable requests wait
	lastFailure string    // of the last call; "" after a success. Only for the log
	unchanged   bool      // the last call was a Sync that changed nothing
	settled     bool      // the last call was a Sync that found the pod settled
}

// effect is what must be done after a change of the state.
type effect struct {
	uid                types.UID
	cancel             error // not nil: cancel the call under way with this cause
	requeue            bool  // requeueAt changed
	phaseChanged       bool  // from one phase to another, because of cause
	from               Phase
	to                 Phase
	cause              Cause
	pod                *corev1.Pod         // if phaseChanged
	termination        runtime.Termination // if phaseChanged and the pod is still known
	finished           bool                // it has finished
	deletedAfterFinish bool                // it was deleted after it had finished, and all resources are released now
	inspect            bool                // the pod may have changed in the runtime
}

// Causes of the cancellation of a call's context, as context.Cause returns them.
var (
	ErrTerminating          = errors.New("pod is terminating")
	ErrGracePeriodShortened = errors.New("grace period shortened")
	ErrStopped              = errors.New("pod workers stopped")
)

// shouldStartSync reports whether a call must be started.
func (s *podState) shouldStartSync() bool {
	return !s.working && s.urgency == immediate && !s.waitingToStart
}

// request records a request for a call that was made at the given time.
func (s *podState) request(u urgency, at time.Time) {
	s.urgency = max(s.urgency, u)
	if s.requestedAt.IsZero() || at.Before(s.requestedAt) {
		s.requestedAt = at
	}
}

// update records a newer desired pod.
func (s *podState) update(u Update, now time.Time) effect {
	e := effect{uid: s.uid}
	if s.orphan || s.phase != Syncing && u.Type == PodCreate {
		// u.Pod is the pod to start after this one has finished.
		s.recreate = true
		return e
	}
	s.pod = u.Pod
	if s.phase == Finished {
		if s.hasUnhandledDeletion() {
			s.request(immediate, u.StartTime)
		}
		return e
	}
	switch {
	case s.phase == Syncing && u.Pod.DeletionTimestamp != nil:
		s.beginTermination(Deleted, &e)
	case s.phase == Syncing && podspec.IsTerminalPhase(u.Pod.Status.Phase):
		s.beginTermination(Completed, &e)
	case s.phase == Terminating && u.Pod.DeletionTimestamp != nil:
		s.shortenGracePeriod(min(s.termination.GracePeriod, podGracePeriod(u.Pod)), &e)
	}
	if s.phase == Finished { // it was terminated before it had started
		return e
	}
	if u.Type == PodReconcile {
		s.requestOrDefer(deferrable, u.StartTime, now, &e)
	} else {
		s.request(immediate, u.StartTime)
	}
	return e
}

// hasUnhandledDeletion reports whether the pod has a deletion timestamp that no
// successful Finish has received. The client that deleted the pod waits for that
// call.
func (s *podState) hasUnhandledDeletion() bool {
	return s.pod.DeletionTimestamp != nil && !s.deletionHandled
}

// kill records a kill request.
func (s *podState) kill(k KillOptions, at time.Time) effect {
	e := effect{uid: s.uid}
	if s.phase < Terminated { // afterwards the final status is set
		if s.termination.Reason == "" {
			s.termination.Reason, s.termination.Message = k.Reason, k.Message
		}
		if k.Evicted {
			s.termination.OverLimit = k.OverLimit && (s.termination.OverLimit || !s.termination.Evicted)
			s.termination.Evicted = true
		}
	}
	if k.Deleted {
		s.termination.Deleted, s.recreate = true, false
	}
	if k.Deleted || k.Evicted || k.Reason != "" {
		s.termination.Drained = false
	}
	switch s.phase {
	case Syncing:
		s.termination.Drained = k.Drained && !k.Deleted && !k.Evicted && k.Reason == ""
		s.beginTermination(k.cause(), &e)
		// No Terminate has received a grace period yet, so the cancellation is
		// because of the termination and not of a shorter grace period.
		s.termination.GracePeriod = k.shortened(s.termination.GracePeriod)
	case Terminating:
		s.shortenGracePeriod(k.shortened(s.termination.GracePeriod), &e)
	case Terminated, Finished: // no container runs
	}
	if s.phase == Finished && (s.resourcesReleased || !s.termination.Deleted) {
		return e
	}
	s.request(immediate, at)
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

// beginTermination moves the pod from Syncing to Terminating, or to Finished if it
// has not started.
func (s *podState) beginTermination(cause Cause, e *effect) {
	s.cause = cause
	s.termination.GracePeriod = podGracePeriod(s.pod)
	s.failures, s.deferUntil = 0, time.Time{}
	if s.waitingToStart {
		s.waitingToStart, s.resourcesReleased, s.deletionHandled = false, true, true
		s.urgency, s.requestedAt = notRequested, time.Time{}
		s.moveTo(Finished, e)
		e.finished = true
		return
	}
	s.moveTo(Terminating, e)
	s.urgency = immediate
	if s.working {
		e.cancel = ErrTerminating
	}
}

func (s *podState) moveTo(p Phase, e *effect) {
	e.phaseChanged, e.from, e.to, e.cause, e.pod = true, s.phase, p, s.cause, s.pod
	s.phase = p
	s.setRequeueAt(time.Time{}, e)
}

// shortenGracePeriod sets a shorter grace period. A longer one is ignored.
func (s *podState) shortenGracePeriod(grace time.Duration, e *effect) {
	if grace >= s.termination.GracePeriod {
		return
	}
	s.termination.GracePeriod = grace
	s.urgency = immediate
	if s.working {
		e.cancel = ErrGracePeriodShortened
	}
}

// SyncCall is one call of the Syncer.
type SyncCall struct {
	UID types.UID
	Pod *corev1.Pod
	// Phase determines the method: Sync in Syncing, Terminate in Terminating,
	// Finish in the others.
	Phase       Phase
	Termination runtime.Termination // not set in Syncing
	NewerThan   time.Time           // the observed state must be newer; zero: any state is new enough
	RequestedAt time.Time           // of the oldest request that the call serves; zero: none
	Orphan      bool                // Pod has only a UID, namespace, name and source
}

// start begins the next call.
func (s *podState) start() SyncCall {
	call := SyncCall{
		UID: s.uid, Pod: s.pod, Phase: s.phase, Termination: s.termination,
		NewerThan: s.newerThan, RequestedAt: s.requestedAt, Orphan: s.orphan,
	}
	s.working, s.urgency, s.requestedAt, s.requeueAt = true, notRequested, time.Time{}, time.Time{}
	return call
}

// complete records the result of a call.
func (s *podState) complete(call SyncCall, result runtime.SyncResult, err error, p policy, now time.Time) effect {
	e := effect{uid: s.uid, inspect: true}
	stillSettled := s.settled && result.Settled
	s.working, s.unchanged, s.settled = false, err == nil && result.Unchanged, err == nil && result.Settled // Terminate and Finish return no result
	result.RequeueAt = monotonic.At(result.RequeueAt, now)
	if !s.unchanged {
		s.newerThan = now
	}
	switch {
	case call.Phase == Syncing && s.phase != Syncing:
		// The pod is terminating: the result of the sync does not matter.
	case err != nil:
		s.fail(err, result.RequeueAt, p, now, &e)
	case call.Phase == Syncing:
		s.completeSync(result, stillSettled, p, now, &e)
	case call.Phase == Terminating:
		s.completeTermination(&e)
	default:
		s.completeFinish(call, &e)
	}
	s.promoteDeferred(now, &e)
	return e
}

func (s *podState) completeSync(result runtime.SyncResult, stillSettled bool, p policy, now time.Time, e *effect) {
	s.failures, s.deferUntil = 0, time.Time{}
	if result.Terminal {
		s.beginTermination(Completed, e)
		return
	}
	e.inspect = !result.Unchanged
	at := p.nextResync(stillSettled, s.cohort, now)
	if !result.RequeueAt.IsZero() && result.RequeueAt.Before(at) {
		at = later(result.RequeueAt, now.Add(minRequeueDelay))
	}
	s.setRequeueAt(at, e)
}

func (s *podState) completeTermination(e *effect) {
	s.failures, s.deferUntil = 0, time.Time{}
	e.inspect = s.orphan // which was removed
	if s.orphan {
		s.resourcesReleased, s.urgency = true, notRequested
		s.moveTo(Finished, e)
		e.finished = true
		return
	}
	s.moveTo(Terminated, e)
	s.urgency = immediate
}

func (s *podState) completeFinish(call SyncCall, e *effect) {
	s.failures, s.deferUntil = 0, time.Time{}
	e.inspect = call.Termination.Deleted // its containers were removed
	s.resourcesReleased = call.Termination.Deleted
	s.urgency = notRequested
	s.deletionHandled = call.Pod.DeletionTimestamp != nil
	if s.termination.Deleted && !s.resourcesReleased || s.hasUnhandledDeletion() { // deleted during the call
		s.urgency = immediate
	}
	if s.phase != Finished {
		s.moveTo(Finished, e)
		e.finished = true
	} else {
		e.deletedAfterFinish = s.resourcesReleased
	}
}
