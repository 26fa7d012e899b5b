package podworkers

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

func (w *Workers) ask(uid types.UID, known func(*life) bool, unknown func(synced bool) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.book.lives[uid]; l != nil {
		return known(l)
	}
	return unknown(w.book.synced)
}

func never(bool) bool         { return false }
func unless(synced bool) bool { return !synced }
func once(synced bool) bool   { return synced }

// Known reports whether the pod has a life here, be it over.
func (w *Workers) Known(uid types.UID) bool {
	return w.ask(uid, func(*life) bool { return true }, never)
}

// Finished reports whether the pod is known and nothing is left to do for it.
func (w *Workers) Finished(uid types.UID) bool {
	return w.ask(uid, (*life).over, never)
}

// CouldHaveRunningContainers reports whether a container of the pod may run. Of
// pods that are not known, that is so until SyncKnown was called with a full set.
func (w *Workers) CouldHaveRunningContainers(uid types.UID) bool {
	return w.ask(uid, func(l *life) bool { return l.phase < Terminated }, unless)
}

// ShouldContainersBeTerminating reports whether the pod's containers have to go:
// its end was asked for, or nobody knows it and SyncKnown was called with a full set.
func (w *Workers) ShouldContainersBeTerminating(uid types.UID) bool {
	return w.ask(uid, func(l *life) bool { return l.phase > Syncing }, once)
}

// MayRemoveContent reports whether what the pod left, dead containers and logs,
// may be removed: it was evicted or deleted and its containers have ended, or
// nobody knows it and SyncKnown was called with a full set.
func (w *Workers) MayRemoveContent(uid types.UID) bool {
	return w.ask(uid, func(l *life) bool {
		return l.phase > Terminating && (l.ending.Deleted || l.ending.Evicted)
	}, once)
}

// Busy reports whether a call for the pod is under way, after which the pod will
// be looked at anyway.
func (w *Workers) Busy(uid types.UID) bool {
	return w.ask(uid, func(l *life) bool { return l.busy }, never)
}

// over reports whether nothing is left to do for a pod.
func (l *life) over() bool {
	return l.phase == Finished && !l.busy && l.want == noTurn && l.due.IsZero()
}

func (b *book) buried(uid types.UID) bool {
	_, ok := b.graves[uid]
	return ok
}

// State is where a pod stands in its life.
type State struct {
	UID             types.UID
	Namespace, Name string
	Phase           Phase
	Cause           Cause
	Ending          runtime.Ending // of no meaning in Syncing
	Orphan          bool           // known from the runtime only
	Queued          bool           // a static pod that waits for another one's end
	Busy            bool           // a call is under way
	Over            bool           // it has finished and nothing is left to do
	Failures        int            // of calls, in a row
	Due             time.Time      // of the next call; zero: none is planned
}

// Snapshot returns where every known pod stands, in the order of their UIDs.
func (w *Workers) Snapshot() []State {
	w.mu.Lock()
	states := make([]State, 0, len(w.book.lives))
	for _, l := range w.book.lives {
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
	l := w.book.lives[uid]
	if l == nil {
		return State{}, false
	}
	return l.state(), true
}

func (l *life) state() State {
	return State{
		UID: l.uid, Namespace: l.pod.Namespace, Name: l.pod.Name, Phase: l.phase, Cause: l.cause,
		Ending: l.ending, Orphan: l.orphan, Queued: l.queued, Busy: l.busy, Over: l.over(),
		Failures: l.fails, Due: l.due,
	}
}

// SyncKnown takes the set of pods that the node should know. Finished pods that are
// not in it are forgotten. Those that came back while they ended are forgotten too
// and returned, for the caller to create them anew, be they in the set, which may be
// older than their return, or not. Full says that nothing is
// missing in the set, which from then on settles what is thought of pods that are
// not known.
func (w *Workers) SyncKnown(wanted map[types.UID]struct{}, full bool) (again []types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.book.sync(wanted, full, time.Now())
}

// Settle does for one pod what SyncKnown does for all.
func (w *Workers) Settle(uid types.UID, wanted bool) (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.book.lives[uid]
	return l != nil && w.book.settle(l, wanted, time.Now())
}

// ComesBack reports whether a pod is known whose end was asked for. It then
// remembers, as for an Update with Create, that the pod is wanted again.
func (w *Workers) ComesBack(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.book.lives[uid]
	if l == nil || l.phase == Syncing {
		return false
	}
	l.restart = true
	return true
}
