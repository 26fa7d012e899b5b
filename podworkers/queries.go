package podworkers

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// query returns ifKnown for a known pod. For an unknown one it returns ifUnknown
// of whether SyncKnownPods was called with a complete set.
func (w *Workers) query(uid types.UID, ifKnown func(*podState) bool, ifUnknown func(synced bool) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.tracker.pods[uid]; s != nil {
		return ifKnown(s)
	}
	return ifUnknown(w.tracker.synced)
}

func alwaysFalse(bool) bool        { return false }
func ifNotSynced(synced bool) bool { return !synced }
func ifSynced(synced bool) bool    { return synced }

// IsKnown reports whether the pod was added and not forgotten. A finished pod is
// known until it is forgotten.
func (w *Workers) IsKnown(uid types.UID) bool {
	return w.query(uid, func(*podState) bool { return true }, alwaysFalse)
}

// IsFinished reports whether the pod is known and nothing is left to do for it.
func (w *Workers) IsFinished(uid types.UID) bool {
	return w.query(uid, (*podState).isIdle, alwaysFalse)
}

// CouldHaveRunningContainers reports whether a container of the pod may be
// running. It is true for unknown pods until SyncKnownPods was called with a
// complete set.
func (w *Workers) CouldHaveRunningContainers(uid types.UID) bool {
	return w.query(uid, func(s *podState) bool { return s.phase < Terminated }, ifNotSynced)
}

// ShouldPodContainersBeTerminating reports whether the containers of the pod must
// stop: its termination was requested, or it is unknown and SyncKnownPods was
// called with a complete set.
func (w *Workers) ShouldPodContainersBeTerminating(uid types.UID) bool {
	return w.query(uid, func(s *podState) bool { return s.phase > Syncing }, ifSynced)
}

// ShouldPodContentBeRemoved reports whether the exited containers and the logs of
// the pod may be removed: it was evicted or deleted and its containers have
// stopped, or it is unknown and SyncKnownPods was called with a complete set.
func (w *Workers) ShouldPodContentBeRemoved(uid types.UID) bool {
	return w.query(uid, func(s *podState) bool {
		return s.phase > Terminating && (s.termination.Deleted || s.termination.Evicted)
	}, ifSynced)
}

// isIdle reports whether nothing is left to do for the pod.
func (s *podState) isIdle() bool {
	return s.phase == Finished && !s.working && s.urgency == notRequested && s.requeueAt.IsZero()
}

func (t *tracker) hasTombstone(uid types.UID) bool {
	_, ok := t.tombstones[uid]
	return ok
}

// State is a snapshot of one pod.
type State struct {
	UID             types.UID
	Namespace, Name string
	Phase           Phase
	Cause           Cause
	Termination     runtime.Termination // not set while Syncing
	Orphan          bool                // found in the runtime only
	Static          bool                // of a static pod; false for an orphan, of which that is not known
	WaitingToStart  bool                // a static pod that waits until another one has finished
	Working         bool                // a call is under way
	Idle            bool                // it has finished and nothing is left to do
	Recreate        bool                // it is to be started again after it has finished
	Failures        int                 // consecutive failed calls
	RequeueAt       time.Time           // when the next call is due; zero: none is planned
}

// Snapshot returns the state of every known pod, sorted by UID.
func (w *Workers) Snapshot() []State {
	w.mu.Lock()
	states := make([]State, 0, len(w.tracker.pods))
	for _, s := range w.tracker.pods {
		states = append(states, s.state())
	}
	w.mu.Unlock()
	slices.SortFunc(states, func(a, b State) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return states
}

// State returns the state of one pod. It reports false if the pod is unknown.
func (w *Workers) State(uid types.UID) (State, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.tracker.pods[uid]
	if s == nil {
		return State{}, false
	}
	return s.state(), true
}

func (s *podState) state() State {
	return State{
		UID: s.uid, Namespace: s.pod.Namespace, Name: s.pod.Name, Phase: s.phase, Cause: s.cause,
		Termination: s.termination, Orphan: s.orphan, Static: !s.orphan && podspec.IsStatic(s.pod), WaitingToStart: s.waitingToStart, Working: s.working, Idle: s.isIdle(),
		Recreate: s.recreate, Failures: s.failures, RequeueAt: s.requeueAt,
	}
}

// SyncKnownPods forgets finished pods that are not in desired. It also forgets, and
// returns, pods that were recreated during termination; the caller must add them
// again, even if desired does not contain them yet. The flag complete states that
// desired contains the pods of all sources. From then on unknown pods count as
// deleted.
func (w *Workers) SyncKnownPods(desired map[types.UID]struct{}, complete bool) (recreated []types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tracker.sync(desired, complete, time.Now())
}

// ForgetFinished does the same as SyncKnownPods for one pod. It reports whether the
// pod was recreated and must be added again.
func (w *Workers) ForgetFinished(uid types.UID, desired bool) (recreated bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.tracker.pods[uid]
	return s != nil && w.tracker.forgetFinished(s, desired, time.Now())
}

// RequestRecreation marks a pod whose termination has begun to be started again
// after it has finished, as an Update of type PodCreate does. It reports whether
// there is such a pod. DrainFinished returns one that has finished already once more.
func (w *Workers) RequestRecreation(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.tracker.pods[uid]
	if s == nil || s.phase == Syncing {
		return false
	}
	s.recreate = true
	if s.isIdle() {
		w.recordAsFinished(uid)
	}
	return true
}
