package podworkers

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

func (w *Workers) ask(uid types.UID, known func(*podState) bool, unknown func(synced bool) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.book.pods[uid]; l != nil {
		return known(l)
	}
	return unknown(w.book.synced)
}

func alwaysFalse(bool) bool        { return false }
func ifNotSynced(synced bool) bool { return !synced }
func ifSynced(synced bool) bool    { return synced }

// IsKnown reports whether the pod has a life here, be it over.
func (w *Workers) IsKnown(uid types.UID) bool {
	return w.ask(uid, func(*podState) bool { return true }, alwaysFalse)
}

// IsFinished reports whether the pod is known and nothing is left to do for it.
func (w *Workers) IsFinished(uid types.UID) bool {
	return w.ask(uid, (*podState).isIdle, alwaysFalse)
}

// CouldHaveRunningContainers reports whether a container of the pod may run. Of
// pods that are not known, that is so until SyncKnown was called with a full set.
func (w *Workers) CouldHaveRunningContainers(uid types.UID) bool {
	return w.ask(uid, func(l *podState) bool { return l.phase < Terminated }, ifNotSynced)
}

// ShouldPodContainersBeTerminating reports whether the pod's containers have to go:
// its end was asked for, or nobody knows it and SyncKnown was called with a full set.
func (w *Workers) ShouldPodContainersBeTerminating(uid types.UID) bool {
	return w.ask(uid, func(l *podState) bool { return l.phase > Syncing }, ifSynced)
}

// ShouldPodContentBeRemoved reports whether what the pod left, dead containers and logs,
// may be removed: it was evicted or deleted and its containers have ended, or
// nobody knows it and SyncKnown was called with a full set.
func (w *Workers) ShouldPodContentBeRemoved(uid types.UID) bool {
	return w.ask(uid, func(l *podState) bool {
		return l.phase > Terminating && (l.termination.Deleted || l.termination.Evicted)
	}, ifSynced)
}

// IsWorking reports whether a call for the pod is under way, after which the pod will
// be looked at anyway.
func (w *Workers) IsWorking(uid types.UID) bool {
	return w.ask(uid, func(l *podState) bool { return l.working }, alwaysFalse)
}

// isIdle reports whether nothing is left to do for a pod.
func (l *podState) isIdle() bool {
	return l.phase == Finished && !l.working && l.urgency == notRequested && l.requeueAt.IsZero()
}

func (b *tracker) hasTombstone(uid types.UID) bool {
	_, ok := b.tombstones[uid]
	return ok
}

// State is where a pod stands in its life.
type State struct {
	UID             types.UID
	Namespace, Name string
	Phase           Phase
	Cause           Cause
	Termination     runtime.Termination // of no meaning in Syncing
	Orphan          bool                // known from the runtime only
	WaitingToStart  bool                // a static pod that waits for another one's end
	Working         bool                // a call is under way
	Idle            bool                // it has finished and nothing is left to do
	Failures        int                 // of calls, in a row
	RequeueAt       time.Time           // of the next call; zero: none is planned
}

// Snapshot returns where every known pod stands, in the order of their UIDs.
func (w *Workers) Snapshot() []State {
	w.mu.Lock()
	states := make([]State, 0, len(w.book.pods))
	for _, l := range w.book.pods {
		states = append(states, l.state())
	}
	w.mu.Unlock()
	slices.SortFunc(states, func(a, b State) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return states
}

// State returns where one pod stands, and false if it is not known.
func (w *Workers) State(uid types.UID) (State, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.book.pods[uid]
	if l == nil {
		return State{}, false
	}
	return l.state(), true
}

func (l *podState) state() State {
	return State{
		UID: l.uid, Namespace: l.pod.Namespace, Name: l.pod.Name, Phase: l.phase, Cause: l.cause,
		Termination: l.termination, Orphan: l.orphan, WaitingToStart: l.queued, Working: l.working, Idle: l.isIdle(),
		Failures: l.failures, RequeueAt: l.requeueAt,
	}
}

// SyncKnownPods takes the set of pods that the node should know. Finished pods that are
// not in it are forgotten. Those that came back while they ended are forgotten too
// and returned, for the caller to create them anew, be they in the set, which may be
// older than their return, or not. Full says that nothing is
// missing in the set, which from then on settles what is thought of pods that are
// not known.
func (w *Workers) SyncKnownPods(wanted map[types.UID]struct{}, full bool) (again []types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.book.sync(wanted, full, time.Now())
}

// ForgetFinished does for one pod what SyncKnown does for all.
func (w *Workers) ForgetFinished(uid types.UID, wanted bool) (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.book.pods[uid]
	return l != nil && w.book.forgetFinished(l, wanted, time.Now())
}

// RequestRecreation reports whether a pod is known whose end was asked for. It then
// remembers, as for an Update with Create, that the pod is wanted again.
func (w *Workers) RequestRecreation(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.book.pods[uid]
	if l == nil || l.phase == Syncing {
		return false
	}
	l.recreate = true
	return true
}
