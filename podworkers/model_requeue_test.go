package podworkers

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// last returns the index of the last entry of that kind before the given one.
func (s *podHistory) last(kind string, before int) int {
	for i := before - 1; i >= 0; i-- {
		if s.log[i].kind == kind {
			return i
		}
	}
	return -1
}

func (s *podHistory) running() bool {
	return s.last("begin", len(s.log)) > s.last("end", len(s.log))
}

// counts reports whether the entry is a reason for a turn at once.
func (h *history) counts(s *podHistory, i int) bool {
	e := s.log[i]
	upTo, was := s.upTo(i+1), s.upTo(i)
	finished := func(x *podHistory) bool { return len(x.log) > 0 && h.phaseOf(s, x) == Finished }
	switch e.kind {
	case "orphan":
		return true
	case "now":
		return !h.deaf(s, i)
	case "kill":
		return !finished(upTo) || s.ending(i+1).Deleted && !s.released(i) && !h.isExpired(s) && !s.orphan
	case "create":
		if i > 0 && (s.orphan || h.phaseOf(s, was) != Syncing) {
			return false
		}
		return !finished(upTo) || s.noSyncNeeded && e.pod.deletion >= 0
	case "change":
		return !s.orphan && !finished(upTo) || h.owesEnd(s, upTo)
	case "reconcile": // the news in it: the end, or a shorter grace
		a := s.asked()
		return h.owesEnd(s, upTo) || i == a || !s.orphan && a >= 0 && a < i && h.phaseOf(s, was) == Terminating && s.grace(i+1) < s.grace(i)
	}
	return false
}

// owesEnd reports whether the part of the story ends with a deletion timestamp of
// which the last Finish that succeeded before did not know.
func (h *history) owesEnd(s, part *podHistory) bool {
	if s.orphan || h.isExpired(s) || h.phaseOf(s, part) != Finished || part.pod(len(part.log)).deletion < 0 {
		return false
	}
	told := false
	for _, e := range part.log {
		if ended(Terminated)(e) {
			told = e.turn.Pod.DeletionTimestamp != nil
		}
	}
	return !told
}

// owesEndAt is owesEnd at the entry of that index.
func (h *history) owesEndAt(s *podHistory, i int) bool { return h.owesEnd(s, s.upTo(i+1)) }

// deaf reports whether a reason to look again came when all was done, and not while
// something that is left to do has to be tried again.
func (h *history) deaf(s *podHistory, i int) bool {
	if h.phaseOf(s, s.upTo(i)) != Finished {
		return false
	}
	end := s.last("end", i)
	return end < 0 || s.last("begin", i) > end || s.log[end].err == nil
}

func (s *podHistory) upTo(n int) *podHistory {
	part := *s
	part.log = s.log[:n]
	return &part
}

// phaseOf is the phase of a part of a story.
func (h *history) phaseOf(whole, part *podHistory) Phase {
	with := &history{stories: slices.Clone(h.stories), seq: h.seq}
	with.stories[slices.Index(with.stories, whole)] = part
	return with.phase(part)
}

// released reports whether the last Finish that succeeded before knew that the pod
// is deleted, or none was needed.
func (s *podHistory) released(before int) bool {
	done := false
	for _, e := range s.log[:before] {
		if ended(Terminated)(e) {
			done = e.turn.Termination.Deleted
		}
	}
	return done
}

// failures are those in a row up to the last end: a call that was made for nothing,
// as another was wanted already when it ended, counts neither way.
func (h *history) failures(s *podHistory) (n int) {
	for i, e := range s.log {
		switch {
		case i == s.asked():
			n = 0
		case e.kind != "end":
		case s.overtaken(i):
		case e.err == nil:
			n = 0
		case !h.wantedMeanwhile(s, i):
			n++
		}
		if e.kind == "end" && i == s.asked() {
			n = 0
		}
	}
	return n
}

// overtaken: it was a sync, and the end was asked for while it ran.
func (s *podHistory) overtaken(end int) bool {
	a := s.asked()
	return s.log[end].turn.Phase == Syncing && a >= 0 && a < end
}

// wantedMeanwhile reports whether there was a reason for another turn while the one
// ran that ended there.
func (h *history) wantedMeanwhile(s *podHistory, end int) bool {
	for i := s.last("begin", end) + 1; i < end; i++ {
		if h.counts(s, i) {
			return true
		}
	}
	return false
}

// due is when a turn begins by itself or because of what was held back; whether it
// is wanted at once is told by the time being zero.
func (h *history) due(s *podHistory) (at time.Time, wanted bool) {
	begin, end := s.last("begin", len(s.log)), s.last("end", len(s.log))
	marked := func(e entry) bool { return (e.kind == "change" || e.kind == "reconcile") && e.pod.deletion >= 0 }
	if h.queuedAt(s, h.seq) || h.isExpired(s) ||
		s.noSyncNeeded && s.log[0].pod.deletion < 0 && s.first(marked) < 0 && !h.deletedNow(s) {
		return time.Time{}, false
	}
	from := begin + 1
	var e entry
	if end >= 0 {
		e = s.log[end]
	}
	over := end >= 0 && e.err == nil && (e.turn.Phase > Terminating || s.orphan && e.turn.Phase == Terminating)
	if over {
		if !s.orphan && s.ending(len(s.log)).Deleted && !s.released(len(s.log)) || h.owesEndAt(s, end) {
			return time.Time{}, true
		}
		from = end + 1 // what came before it is served
	}
	soon := false
	for i := from; i < len(s.log); i++ {
		if h.counts(s, i) {
			return time.Time{}, true
		}
		switch s.log[i].kind {
		case "event":
			soon = soon || !h.deaf(s, i)
		case "reconcile":
			soon = soon || !s.orphan && h.phaseOf(s, s.upTo(i)) != Finished
		}
	}
	if end < 0 { // it waits for its first turn
		return time.Time{}, soon && !over
	}
	if over {
		return time.Time{}, false
	}
	if s.overtaken(end) || e.err == nil && (e.turn.Phase == Terminating || e.out.Terminal) {
		return time.Time{}, true
	}
	fails := h.failures(s)
	if a := s.asked(); a > end { // asked for since: counted above
		fails = 0
	}
	hold := e.at
	if e.err != nil {
		hold = e.at.Add(naiveHold(fails))
	}
	if e.err == nil {
		at = e.at.Add(time.Minute)
		if d := e.out.RequeueAt; !d.IsZero() && d.Before(at) {
			at = later(d, e.at.Add(10*time.Millisecond))
		}
	} else {
		at = e.at.Add(10 * time.Second)
		if errors.Is(e.err, runtime.ErrNotReady) {
			at = e.at.Add(time.Second)
		}
		if d := e.out.RequeueAt; !d.IsZero() && d.Before(at) {
			at = later(d, later(hold, e.at.Add(10*time.Millisecond)))
		}
	}
	if soon && hold.Before(at) {
		at = hold
	}
	return at, true
}

func (h *history) deletedNow(s *podHistory) bool { return s.ending(len(s.log)).Deleted }

func naiveHold(fails int) time.Duration {
	switch fails {
	case 0, 1:
		return 0
	case 2:
		return 100 * time.Millisecond
	case 3:
		return 200 * time.Millisecond
	case 4:
		return 400 * time.Millisecond
	case 5:
		return 800 * time.Millisecond
	}
	return time.Second
}

// cancelled reports whether the turn under way should have been. PW-6
func (s *podHistory) cancelled() bool {
	b := s.last("begin", len(s.log))
	t := s.log[b].turn
	switch t.Phase {
	case Syncing:
		return s.asked() > b
	case Terminating:
		return s.grace(len(s.log)) < t.Termination.GracePeriod
	}
	return false
}

// restart reports whether the UID came back and was not removed since. PW-10
func (h *history) restart(s *podHistory) bool {
	again := false
	for i, e := range s.log {
		switch {
		case e.kind == "kill" && e.kill.Deleted:
			again = false
		case i == 0:
		case s.orphan && (e.kind == "create" || e.kind == "change" || e.kind == "reconcile"):
			again = true
		case e.kind == "create" && (s.noSyncNeeded || s.asked() >= 0 && i > s.asked()):
			again = true
		}
	}
	return again
}

// checkBegin reports what is wrong with the turn that begins at the end of the log.
func (h *history) checkBegin(s *podHistory, t SyncCall, now time.Time) error {
	n := len(s.log)
	at, wanted := h.due(s)
	ready := s.log[n-1].at
	if at.After(ready) {
		ready = at
	}
	wantEnding := runtime.Termination{}
	got := t.Termination
	if t.Phase != Syncing {
		wantEnding = s.ending(n)
		got.Message = ""
	} else {
		got = runtime.Termination{}
	}
	phase := h.phase(s)
	switch {
	case s.running():
		return errors.New("PW-2: two calls at once")
	case t.Phase != phase:
		return fmt.Errorf("PW-1: %v in phase %v", t.Phase, phase)
	case h.queuedAt(s, h.seq):
		return errors.New("PW-9: begins before its turn")
	case s.orphan && t.Phase != Terminating:
		return fmt.Errorf("PW-11: %v of an orphan", t.Phase)
	case t.Pod.Labels["v"] != s.pod(n).version:
		return fmt.Errorf("PW-3: pod %q, want %q", t.Pod.Labels["v"], s.pod(n).version)
	case got != wantEnding:
		return fmt.Errorf("PW-5: ending %+v, want %+v", got, wantEnding)
	case !t.NewerThan.Equal(s.since(n)):
		return fmt.Errorf("PW-14: view since %v, want %v", t.NewerThan, s.since(n))
	case !wanted:
		return errors.New("nobody wants a turn")
	case at.After(now):
		return fmt.Errorf("PW-8: begins at %v, due at %v", now, at)
	case now.After(ready) && !now.Equal(s.lastWord(h)):
		return fmt.Errorf("begins late: at %v, could at %v", now, ready)
	}
	return nil
}

// lastWord is when anybody last said anything, which may have let a static pod in.
func (s *podHistory) lastWord(h *history) (at time.Time) {
	for _, o := range h.stories {
		at = later(at, o.log[len(o.log)-1].at)
	}
	return at
}
