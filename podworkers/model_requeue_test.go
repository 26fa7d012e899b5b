package podworkers

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// last returns the index of the last entry of a kind before the given index.
func (s *podHistory) last(kind string, before int) int {
	for i := before - 1; i >= 0; i-- {
		if s.log[i].kind == kind {
			return i
		}
	}
	return -1
}

// wasSettled reports whether the call before the one that ended at the given entry was a Sync
// that found the pod settled.
func (s *podHistory) wasSettled(end int) bool {
	i := s.last("end", end)
	return i >= 0 && s.log[i].err == nil && s.log[i].result.Settled
}

func (s *podHistory) running() bool {
	return s.last("begin", len(s.log)) > s.last("end", len(s.log))
}

// requestsCall reports whether the entry makes a call due at once.
func (h *history) requestsCall(s *podHistory, i int) bool {
	e := s.log[i]
	upTo, was := s.upTo(i+1), s.upTo(i)
	finished := func(x *podHistory) bool { return len(x.log) > 0 && h.phaseOf(s, x) == Finished }
	switch e.kind {
	case "orphan":
		return true
	case "now":
		return !h.isIgnored(s, i)
	case "kill":
		return !finished(upTo) || s.termination(i+1).Deleted && !s.released(i) && !h.isExpired(s) && !s.orphan
	case "create":
		if i > 0 && (s.orphan || h.phaseOf(s, was) != Syncing) {
			return false
		}
		return !finished(upTo)
	case "change":
		return !s.orphan && !finished(upTo) || h.hasUnhandledDeletion(s, upTo)
	case "reconcile": // only if it requests the termination or a shorter grace period
		a := s.terminationIndex()
		return h.hasUnhandledDeletion(s, upTo) || i == a || !s.orphan && a >= 0 && a < i && h.phaseOf(s, was) == Terminating && s.grace(i+1) < s.grace(i)
	}
	return false
}

// hasUnhandledDeletion reports whether the pod at the end of part has a deletion
// timestamp that the last successful Finish did not have.
func (h *history) hasUnhandledDeletion(s, part *podHistory) bool {
	if s.orphan || h.isExpired(s) || h.phaseOf(s, part) != Finished || part.pod(len(part.log)).deletion < 0 {
		return false
	}
	handled := false
	for _, e := range part.log {
		if hasCompleted(Terminated)(e) {
			handled = e.call.Pod.DeletionTimestamp != nil
		}
	}
	return !handled
}

// hasUnhandledDeletionAt is hasUnhandledDeletion up to the entry with the given
// index.
func (h *history) hasUnhandledDeletionAt(s *podHistory, i int) bool {
	return h.hasUnhandledDeletion(s, s.upTo(i+1))
}

// isIgnored reports whether a requeue came after the pod had finished, and no failed
// Finish has to be retried.
func (h *history) isIgnored(s *podHistory, i int) bool {
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

// phaseOf returns the phase of the pod at the end of part.
func (h *history) phaseOf(complete, part *podHistory) Phase {
	with := &history{pods: slices.Clone(h.pods), seq: h.seq}
	with.pods[slices.Index(with.pods, complete)] = part
	return with.phase(part)
}

// released reports whether the last successful Finish before an entry had
// Termination.Deleted.
func (s *podHistory) released(before int) bool {
	done := false
	for _, e := range s.log[:before] {
		if hasCompleted(Terminated)(e) {
			done = e.call.Termination.Deleted
		}
	}
	return done
}

// failures returns the number of consecutive failures. A failed call does not count
// if another one was requested during it.
func (h *history) failures(s *podHistory) (n int) {
	for i, e := range s.log {
		switch {
		case i == s.terminationIndex():
			n = 0
		case e.kind != "end":
		case s.isOvertaken(i):
		case e.err == nil:
			n = 0
		case !h.requestedDuring(s, i):
			n++
		}
		if e.kind == "end" && i == s.terminationIndex() {
			n = 0
		}
	}
	return n
}

// isOvertaken reports whether a termination was requested during a sync.
func (s *podHistory) isOvertaken(end int) bool {
	a := s.terminationIndex()
	return s.log[end].call.Phase == Syncing && a >= 0 && a < end
}

// requestedDuring reports whether another call was requested during the one that
// ended at the given entry.
func (h *history) requestedDuring(s *podHistory, end int) bool {
	for i := s.last("begin", end) + 1; i < end; i++ {
		if h.requestsCall(s, i) {
			return true
		}
	}
	return false
}

// nextCall returns when the next call is due, and whether there is one. The zero
// time means at once.
func (h *history) nextCall(s *podHistory) (at time.Time, requested bool) {
	begin, end := s.last("begin", len(s.log)), s.last("end", len(s.log))
	if h.isWaitingAt(s, h.seq) || h.isExpired(s) {
		return time.Time{}, false
	}
	from := begin + 1
	var e entry
	if end >= 0 {
		e = s.log[end]
	}
	finished := end >= 0 && e.err == nil && (e.call.Phase > Terminating || s.orphan && e.call.Phase == Terminating)
	if finished {
		if !s.orphan && s.termination(len(s.log)).Deleted && !s.released(len(s.log)) || h.hasUnhandledDeletionAt(s, end) {
			return time.Time{}, true
		}
		from = end + 1 // it served all earlier requests
	}
	deferred := false
	for i := from; i < len(s.log); i++ {
		if h.requestsCall(s, i) {
			return time.Time{}, true
		}
		switch s.log[i].kind {
		case "event":
			deferred = deferred || !h.isIgnored(s, i)
		case "reconcile":
			deferred = deferred || !s.orphan && h.phaseOf(s, s.upTo(i)) != Finished
		}
	}
	if end < 0 { // no call yet
		return time.Time{}, deferred && !finished
	}
	if finished {
		return time.Time{}, false
	}
	if s.isOvertaken(end) || e.err == nil && (e.call.Phase == Terminating || e.result.Terminal) {
		return time.Time{}, true
	}
	failures := h.failures(s)
	if a := s.terminationIndex(); a > end { // requested afterwards: handled above
		failures = 0
	}
	deferUntil := e.at
	if e.err != nil {
		deferUntil = e.at.Add(expectedEventDelay(failures))
	}
	if e.err == nil {
		at = e.at.Add(time.Minute)
		if e.result.Settled && s.wasSettled(end) {
			at = e.at.Add(5 * time.Minute)
		}
		if d := e.result.RequeueAt; !d.IsZero() && d.Before(at) {
			at = later(d, e.at.Add(10*time.Millisecond))
		}
	} else {
		at = e.at.Add(10 * time.Second)
		if errors.Is(e.err, runtime.ErrNotReady) {
			at = e.at.Add(time.Second)
		}
		if d := e.result.RequeueAt; !d.IsZero() && d.Before(at) {
			at = later(d, later(deferUntil, e.at.Add(10*time.Millisecond)))
		}
	}
	if deferred && deferUntil.Before(at) {
		at = deferUntil
	}
	return at, true
}

func expectedEventDelay(failures int) time.Duration {
	switch failures {
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

// cancelled reports whether the call under way must be cancelled. PW-6
func (s *podHistory) cancelled() bool {
	b := s.last("begin", len(s.log))
	t := s.log[b].call
	switch t.Phase {
	case Syncing:
		return s.terminationIndex() > b
	case Terminating:
		return s.grace(len(s.log)) < t.Termination.GracePeriod
	}
	return false
}

// isRecreated reports whether the UID was added again and not deleted since. PW-10
func (h *history) isRecreated(s *podHistory) bool {
	recreated := false
	for i, e := range s.log {
		switch {
		case e.kind == "kill" && e.kill.Deleted:
			recreated = false
		case i == 0:
		case s.orphan && (e.kind == "create" || e.kind == "change" || e.kind == "reconcile"):
			recreated = true
		case e.kind == "create" && (s.wasTerminated || s.terminationIndex() >= 0 && i > s.terminationIndex()):
			recreated = true
		}
	}
	return recreated
}

// checkBegin checks a call that begins at the end of the log.
func (h *history) checkBegin(s *podHistory, t SyncCall, now time.Time) error {
	n := len(s.log)
	at, requested := h.nextCall(s)
	ready := s.log[n-1].at
	if at.After(ready) {
		ready = at
	}
	wantTermination := runtime.Termination{}
	got := t.Termination
	if t.Phase != Syncing {
		wantTermination = s.termination(n)
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
	case h.isWaitingAt(s, h.seq):
		return errors.New("PW-9: starts while another static pod runs")
	case s.orphan && t.Phase != Terminating:
		return fmt.Errorf("PW-11: %v of an orphan", t.Phase)
	case t.Pod.Labels["v"] != s.pod(n).version:
		return fmt.Errorf("PW-3: pod %q, want %q", t.Pod.Labels["v"], s.pod(n).version)
	case got != wantTermination:
		return fmt.Errorf("PW-5: termination %+v, want %+v", got, wantTermination)
	case !t.NewerThan.Equal(s.newerThan(n)):
		return fmt.Errorf("PW-14: state newer than %v, want %v", t.NewerThan, s.newerThan(n))
	case !requested:
		return errors.New("no call is due")
	case at.After(now):
		return fmt.Errorf("PW-8: begins at %v, due at %v", now, at)
	case now.After(ready.Add(s.latest())) && !now.Equal(s.lastChange(h)):
		return fmt.Errorf("begins late: at %v, could at %v", now, ready)
	}
	return nil
}

// latest returns how long after its time the next call may begin: resyncs of pods whose last sync
// changed nothing wait for each other until one has blocked.
func (s *podHistory) latest() time.Duration {
	if end := s.last("end", len(s.log)); end >= 0 && s.log[end].err == nil && s.log[end].result.Unchanged {
		return handOffAfter
	}
	return 0
}

// lastChange returns the time of the last entry of any pod, which may have started
// a static pod.
func (s *podHistory) lastChange(h *history) (at time.Time) {
	for _, o := range h.pods {
		at = later(at, o.log[len(o.log)-1].at)
	}
	return at
}
