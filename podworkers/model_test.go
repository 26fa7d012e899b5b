package podworkers

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// The model records only the requests and the calls of each pod. It has no state:
// every answer is computed from the complete history.

type entry struct {
	at     time.Time
	kind   string // create change reconcile orphan kill event now begin end
	pod    podFacts
	kill   KillOptions
	call   SyncCall // of begin and end
	result runtime.SyncResult
	err    error
	seq    int // across all pods
}

// podFacts are the properties of a pod object that the model needs.
type podFacts struct {
	version  string
	own      time.Duration // grace period
	deletion time.Duration // deletion grace period; -1: not deleted
	terminal bool
}

func (p podFacts) grace() time.Duration {
	if p.deletion >= 0 {
		return max(p.deletion, time.Second)
	}
	return max(p.own, time.Second)
}

// podHistory is the history of one UID from its first request until it is forgotten.
type podHistory struct {
	uid           types.UID
	static        bool // waits for others of its full name, and they for it
	orphan        bool
	wasTerminated bool // in a terminal phase and stopped when added
	hasTombstone  time.Time
	log           []entry

	wasNotified bool
}

// history holds all pods in the order in which they were added.
type history struct {
	pods []*podHistory
	seq  int
}

func (s *podHistory) add(h *history, e entry) {
	h.seq++
	e.seq = h.seq
	s.log = append(s.log, e)
}

// first returns the index of the first entry that matches, or -1.
func (s *podHistory) first(is func(entry) bool) int { return slices.IndexFunc(s.log, is) }

func hasCompleted(phase Phase) func(entry) bool {
	return func(e entry) bool {
		got := e.call.Phase
		return e.kind == "end" && e.err == nil && (got == phase || phase == Terminated && got == Finished)
	}
}

// terminationIndex returns the index of the entry that requests the termination, or
// -1.
func (s *podHistory) terminationIndex() int {
	return s.first(func(e entry) bool {
		switch e.kind {
		case "orphan", "kill":
			return true
		case "create", "change", "reconcile":
			return e.pod.terminal || e.pod.deletion >= 0
		}
		return e.kind == "end" && e.call.Phase == Syncing && e.err == nil && e.result.Terminal
	})
}

// isExpired reports whether a static pod was terminated before it started.
func (h *history) isExpired(s *podHistory) bool {
	a := s.terminationIndex()
	return a >= 0 && !s.orphan && !s.wasTerminated && h.isWaitingAt(s, s.log[a].seq)
}

// isWaitingAt reports whether a static pod still waits to start at seq.
func (h *history) isWaitingAt(s *podHistory, seq int) bool {
	if !s.static || s.skipsQueue() {
		return false
	}
	// It starts when it is added or when another pod finishes.
	begin := s.log[0].seq
	moments := []int{begin}
	for _, o := range h.pods {
		if o == s || !o.static || !o.skipsQueue() && o.log[0].seq > begin {
			continue
		}
		if fin := h.finishedAt(o); fin > begin && fin <= seq {
			moments = append(moments, fin)
		}
	}
	for _, now := range moments {
		if !slices.ContainsFunc(h.pods, func(o *podHistory) bool { return h.blocks(o, s, now) }) {
			return false
		}
	}
	return true
}

// skipsQueue reports whether a previous process has started the pod.
func (s *podHistory) skipsQueue() bool { return s.orphan || s.wasTerminated }

// blocks reports whether s waits for o at the given time: o was added before or was
// started by a previous process, and has not finished.
func (h *history) blocks(o, s *podHistory, now int) bool {
	if o == s || !o.static || o.log[0].seq > now || !o.skipsQueue() && o.log[0].seq > s.log[0].seq {
		return false
	}
	fin := h.finishedAt(o)
	return fin < 0 || fin > now
}

// finishedAt returns the seq at which the pod finished, or -1.
func (h *history) finishedAt(s *podHistory) int {
	switch {
	case h.isExpired(s):
		return s.log[s.terminationIndex()].seq
	}
	last := Terminated
	if s.orphan {
		last = Terminating
	}
	if i := s.first(hasCompleted(last)); i >= 0 {
		return s.log[i].seq
	}
	return -1
}

func (h *history) phase(s *podHistory) Phase {
	switch {
	case len(s.log) == 0:
		return Syncing
	case h.finishedAt(s) >= 0:
		return Finished
	case s.wasTerminated || s.first(hasCompleted(Terminating)) >= 0:
		return Terminated
	case s.terminationIndex() >= 0:
		return Terminating
	}
	return Syncing
}

// pod returns the newest pod object before the entry with the given index.
func (s *podHistory) pod(before int) podFacts {
	var p podFacts
	terminationIndex := s.terminationIndex()
	for i, e := range s.log[:before] {
		switch e.kind {
		case "create":
			if terminationIndex < 0 || i <= terminationIndex {
				p = e.pod
			}
		case "change", "reconcile", "orphan":
			if !s.orphan || i == 0 {
				p = e.pod
			}
		}
	}
	return p
}

// grace returns the shortest grace period requested before an entry. PW-5
func (s *podHistory) grace(before int) time.Duration {
	if s.wasTerminated {
		return s.log[0].pod.grace()
	}
	a := s.terminationIndex()
	done := s.first(hasCompleted(Terminating))
	grace := s.pod(a + 1).grace()
	for i, e := range s.log[:before] {
		switch {
		case i < a || done >= 0 && i > done:
		case e.kind == "kill" && e.kill.Force:
			grace = 0
		case e.kind == "kill" && e.kill.GracePeriod > 0:
			grace = min(grace, max(e.kill.GracePeriod, time.Second))
		case !s.orphan && (e.kind == "change" || e.kind == "reconcile") && e.pod.deletion >= 0:
			grace = min(grace, e.pod.grace())
		}
	}
	return grace
}

// termination returns the expected argument of a call that begins at an entry.
func (s *podHistory) termination(before int) runtime.Termination {
	e := runtime.Termination{GracePeriod: s.grace(before), Deleted: s.orphan}
	done := s.first(hasCompleted(Terminating))
	for i, x := range s.log[:before] {
		if x.kind != "kill" {
			continue
		}
		e.Deleted = e.Deleted || x.kill.Deleted
		if done >= 0 && i > done || s.wasTerminated {
			continue
		}
		e.Evicted = e.Evicted || x.kill.Evicted
		if e.Reason == "" {
			e.Reason = x.kill.Reason
		}
	}
	return e
}

// newerThan returns the expected SyncCall.NewerThan of a call that begins at an
// entry. PW-14
func (s *podHistory) newerThan(before int) time.Time {
	newerThan := s.hasTombstone
	if !newerThan.IsZero() { // a state observed at the very time of the tombstone is outdated
		newerThan = newerThan.Add(time.Nanosecond)
	}
	for _, e := range s.log[:before] {
		if e.kind == "end" && (e.err != nil || e.call.Phase != Syncing || !e.result.Unchanged) {
			newerThan = e.at
		}
	}
	return newerThan
}
