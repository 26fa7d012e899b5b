package podworkers

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// The reference knows nothing but what was asked for and which calls were made. It
// keeps no state: each question is answered from the whole history, by looking for
// the entries that decide it.

type entry struct {
	at   time.Time
	kind string // create change reconcile orphan kill event now begin end
	pod  podFacts
	kill KillOptions
	turn SyncCall // of begin and end
	out  runtime.SyncResult
	err  error
	seq  int // among all pods
}

// podFacts are what a pod object says that matters here.
type podFacts struct {
	version  string
	own      time.Duration // grace
	deletion time.Duration // grace of its deletion; -1: it is not deleted
	terminal bool
}

func (p podFacts) grace() time.Duration {
	if p.deletion >= 0 {
		return max(p.deletion, time.Second)
	}
	return max(p.own, time.Second)
}

// podHistory is one life of a UID.
type podHistory struct {
	uid          types.UID
	static       bool
	orphan       bool
	noSyncNeeded bool // terminal when first heard of, with nothing alive in the runtime
	hasTombstone time.Time
	log          []entry

	hadEnded bool
}

// history is all stories, in the order in which they began.
type history struct {
	stories []*podHistory
	seq     int
}

func (s *podHistory) add(h *history, e entry) {
	h.seq++
	e.seq = h.seq
	s.log = append(s.log, e)
}

// first returns the index of the first entry that is so, or -1.
func (s *podHistory) first(is func(entry) bool) int { return slices.IndexFunc(s.log, is) }

func ended(phase Phase) func(entry) bool {
	return func(e entry) bool {
		got := e.turn.Phase
		return e.kind == "end" && e.err == nil && (got == phase || phase == Terminated && got == Finished)
	}
}

// asked is where the end of the pod was first asked for, or -1.
func (s *podHistory) asked() int {
	return s.first(func(e entry) bool {
		switch e.kind {
		case "orphan", "kill":
			return true
		case "create", "change", "reconcile":
			return e.pod.terminal || e.pod.deletion >= 0
		}
		return e.kind == "end" && e.turn.Phase == Syncing && e.err == nil && e.out.Terminal
	})
}

// isExpired reports whether the end of a static pod was asked for before its turn.
func (h *history) isExpired(s *podHistory) bool {
	a := s.asked()
	return a >= 0 && !s.orphan && !s.noSyncNeeded && h.queuedAt(s, s.log[a].seq)
}

// queuedAt reports whether the pod's turn had not come by then.
func (h *history) queuedAt(s *podHistory, seq int) bool {
	if !s.static || s.orphan || s.noSyncNeeded {
		return false
	}
	// It comes at the beginning, or when somebody else finishes.
	begin := s.log[0].seq
	moments := []int{begin}
	for _, o := range h.stories {
		if o == s || !o.static || !o.orphan && o.log[0].seq > begin {
			continue
		}
		if fin := h.finishedAt(o); fin > begin && fin <= seq {
			moments = append(moments, fin)
		}
	}
	for _, now := range moments {
		if !slices.ContainsFunc(h.stories, func(o *podHistory) bool { return h.blocks(o, s, now) }) {
			return false
		}
	}
	return true
}

// blocks reports whether o lived at the time and lets s wait: it came before, or
// was found alive.
func (h *history) blocks(o, s *podHistory, now int) bool {
	if o == s || !o.static || o.log[0].seq > now || !o.orphan && o.log[0].seq > s.log[0].seq {
		return false
	}
	fin := h.finishedAt(o)
	return fin < 0 || fin > now
}

// finishedAt is when all was done for the pod, or -1.
func (h *history) finishedAt(s *podHistory) int {
	switch {
	case s.noSyncNeeded:
		return s.log[0].seq
	case h.isExpired(s):
		return s.log[s.asked()].seq
	}
	last := Terminated
	if s.orphan {
		last = Terminating
	}
	if i := s.first(ended(last)); i >= 0 {
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
	case s.first(ended(Terminating)) >= 0:
		return Terminated
	case s.asked() >= 0:
		return Terminating
	}
	return Syncing
}

// pod is the newest pod before the entry of that index.
func (s *podHistory) pod(before int) podFacts {
	var p podFacts
	ending := s.asked()
	for i, e := range s.log[:before] {
		switch e.kind {
		case "create":
			if ending < 0 || i <= ending {
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

// grace is the shortest that anybody has asked for before that entry. PW-5
func (s *podHistory) grace(before int) time.Duration {
	if s.noSyncNeeded {
		return s.log[0].pod.grace()
	}
	a := s.asked()
	done := s.first(ended(Terminating))
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

// ending is what a call that begins at that entry is told.
func (s *podHistory) ending(before int) runtime.Termination {
	e := runtime.Termination{GracePeriod: s.grace(before), Deleted: s.orphan}
	done := s.first(ended(Terminating))
	for i, x := range s.log[:before] {
		if x.kind != "kill" {
			continue
		}
		e.Deleted = e.Deleted || x.kill.Deleted
		if done >= 0 && i > done || s.noSyncNeeded {
			continue
		}
		e.Evicted = e.Evicted || x.kill.Evicted
		if e.Reason == "" {
			e.Reason = x.kill.Reason
		}
	}
	return e
}

// since is how new the view of a call that begins at that entry has to be. PW-14
func (s *podHistory) since(before int) time.Time {
	since := s.hasTombstone
	if !since.IsZero() { // what had the very time of the end was seen before it
		since = since.Add(time.Nanosecond)
	}
	for _, e := range s.log[:before] {
		if e.kind == "end" && (e.err != nil || e.turn.Phase != Syncing || !e.out.Unchanged) {
			since = e.at
		}
	}
	return since
}
