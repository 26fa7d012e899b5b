package podworkers

import (
	"errors"
	"fmt"
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
	kill Kill
	turn Turn // of begin and end
	out  runtime.Outcome
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

// story is one life of a UID.
type story struct {
	uid    types.UID
	static bool
	orphan bool
	hollow bool // terminal when first heard of, with nothing alive in the runtime
	grave  time.Time
	log    []entry

	hadEnded bool
}

// history is all stories, in the order in which they began.
type history struct {
	stories []*story
	seq     int
}

func (s *story) add(h *history, e entry) {
	h.seq++
	e.seq = h.seq
	s.log = append(s.log, e)
}

// first returns the index of the first entry that is so, or -1.
func (s *story) first(is func(entry) bool) int { return slices.IndexFunc(s.log, is) }

func ended(phase Phase) func(entry) bool {
	return func(e entry) bool {
		got := e.turn.Phase
		return e.kind == "end" && e.err == nil && (got == phase || phase == Terminated && got == Finished)
	}
}

// asked is where the end of the pod was first asked for, or -1.
func (s *story) asked() int {
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

// lapsed reports whether the end of a static pod was asked for before its turn.
func (h *history) lapsed(s *story) bool {
	a := s.asked()
	return a >= 0 && !s.orphan && !s.hollow && h.queuedAt(s, s.log[a].seq)
}

// queuedAt reports whether the pod's turn had not come by then.
func (h *history) queuedAt(s *story, seq int) bool {
	if !s.static || s.orphan || s.hollow {
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
		if !slices.ContainsFunc(h.stories, func(o *story) bool { return h.blocks(o, s, now) }) {
			return false
		}
	}
	return true
}

// blocks reports whether o lived at the time and lets s wait: it came before, or
// was found alive.
func (h *history) blocks(o, s *story, now int) bool {
	if o == s || !o.static || o.log[0].seq > now || !o.orphan && o.log[0].seq > s.log[0].seq {
		return false
	}
	fin := h.finishedAt(o)
	return fin < 0 || fin > now
}

// finishedAt is when all was done for the pod, or -1.
func (h *history) finishedAt(s *story) int {
	switch {
	case s.hollow:
		return s.log[0].seq
	case h.lapsed(s):
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

func (h *history) phase(s *story) Phase {
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
func (s *story) pod(before int) podFacts {
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
func (s *story) grace(before int) time.Duration {
	if s.hollow {
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
		case e.kind == "kill" && e.kill.Grace > 0:
			grace = min(grace, max(e.kill.Grace, time.Second))
		case !s.orphan && (e.kind == "change" || e.kind == "reconcile") && e.pod.deletion >= 0:
			grace = min(grace, e.pod.grace())
		}
	}
	return grace
}

// ending is what a call that begins at that entry is told.
func (s *story) ending(before int) runtime.Ending {
	e := runtime.Ending{Grace: s.grace(before), Deleted: s.orphan}
	done := s.first(ended(Terminating))
	for i, x := range s.log[:before] {
		if x.kind != "kill" {
			continue
		}
		e.Deleted = e.Deleted || x.kill.Deleted
		if done >= 0 && i > done || s.hollow {
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
func (s *story) since(before int) time.Time {
	since := s.grave
	for _, e := range s.log[:before] {
		if e.kind == "end" && (e.err != nil || e.turn.Phase != Syncing || !e.out.Quiet) {
			since = e.at
		}
	}
	return since
}

// last returns the index of the last entry of that kind before the given one.
func (s *story) last(kind string, before int) int {
	for i := before - 1; i >= 0; i-- {
		if s.log[i].kind == kind {
			return i
		}
	}
	return -1
}

func (s *story) running() bool {
	return s.last("begin", len(s.log)) > s.last("end", len(s.log))
}

// counts reports whether the entry is a reason for a turn at once.
func (h *history) counts(s *story, i int) bool {
	e := s.log[i]
	upTo, was := s.upTo(i+1), s.upTo(i)
	finished := func(x *story) bool { return len(x.log) > 0 && h.phaseOf(s, x) == Finished }
	switch e.kind {
	case "orphan":
		return true
	case "now":
		return !h.deaf(s, i)
	case "kill":
		return !finished(upTo) || s.ending(i+1).Deleted && !s.released(i) && !h.lapsed(s) && !s.orphan
	case "create":
		if i > 0 && (s.orphan || h.phaseOf(s, was) != Syncing) {
			return false
		}
		return !finished(upTo) || s.hollow && e.pod.deletion >= 0
	case "change":
		return !s.orphan && !finished(upTo)
	case "reconcile": // the news in it: the end, or a shorter grace
		a := s.asked()
		return i == a || !s.orphan && a >= 0 && a < i && h.phaseOf(s, was) == Terminating && s.grace(i+1) < s.grace(i)
	}
	return false
}

// deaf reports whether a reason to look again came when all was done, and not while
// something that is left to do has to be tried again.
func (h *history) deaf(s *story, i int) bool {
	if h.phaseOf(s, s.upTo(i)) != Finished {
		return false
	}
	end := s.last("end", i)
	return end < 0 || s.last("begin", i) > end || s.log[end].err == nil
}

func (s *story) upTo(n int) *story {
	part := *s
	part.log = s.log[:n]
	return &part
}

// phaseOf is the phase of a part of a story.
func (h *history) phaseOf(whole, part *story) Phase {
	with := &history{stories: slices.Clone(h.stories), seq: h.seq}
	with.stories[slices.Index(with.stories, whole)] = part
	return with.phase(part)
}

// released reports whether the last Finish that succeeded before knew that the pod
// is deleted, or none was needed.
func (s *story) released(before int) bool {
	done := false
	for _, e := range s.log[:before] {
		if ended(Terminated)(e) {
			done = e.turn.Ending.Deleted
		}
	}
	return done
}

// failures are those in a row up to the last end: a call that was made for nothing,
// as another was wanted already when it ended, counts neither way.
func (h *history) failures(s *story) (n int) {
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
func (s *story) overtaken(end int) bool {
	a := s.asked()
	return s.log[end].turn.Phase == Syncing && a >= 0 && a < end
}

// wantedMeanwhile reports whether there was a reason for another turn while the one
// ran that ended there.
func (h *history) wantedMeanwhile(s *story, end int) bool {
	for i := s.last("begin", end) + 1; i < end; i++ {
		if h.counts(s, i) {
			return true
		}
	}
	return false
}

// due is when a turn begins by itself or because of what was held back; whether it
// is wanted at once is told by the time being zero.
func (h *history) due(s *story) (at time.Time, wanted bool) {
	begin, end := s.last("begin", len(s.log)), s.last("end", len(s.log))
	if h.queuedAt(s, h.seq) || s.hollow && s.log[0].pod.deletion < 0 && !h.deletedNow(s) || h.lapsed(s) {
		return time.Time{}, false
	}
	from := begin + 1
	var e entry
	if end >= 0 {
		e = s.log[end]
	}
	over := end >= 0 && e.err == nil && (e.turn.Phase > Terminating || s.orphan && e.turn.Phase == Terminating)
	if over {
		if !s.orphan && s.ending(len(s.log)).Deleted && !s.released(len(s.log)) {
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
	switch {
	case e.err == nil:
		at = e.at.Add(time.Minute)
		if d := e.out.Due; !d.IsZero() && d.Before(at) {
			at = later(d, e.at.Add(10*time.Millisecond))
		}
	default:
		at = e.at.Add(10 * time.Second)
		if errors.Is(e.err, runtime.ErrNotReady) {
			at = e.at.Add(time.Second)
		}
		if d := e.out.Due; !d.IsZero() && d.Before(at) {
			at = later(d, later(hold, e.at.Add(10*time.Millisecond)))
		}
	}
	if soon && hold.Before(at) {
		at = hold
	}
	return at, true
}

func (h *history) deletedNow(s *story) bool { return s.ending(len(s.log)).Deleted }

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
func (s *story) cancelled() bool {
	b := s.last("begin", len(s.log))
	t := s.log[b].turn
	switch t.Phase {
	case Syncing:
		return s.asked() > b
	case Terminating:
		return s.grace(len(s.log)) < t.Ending.Grace
	}
	return false
}

// restart reports whether the UID came back and was not removed since. PW-10
func (h *history) restart(s *story) bool {
	again := false
	for i, e := range s.log {
		switch {
		case e.kind == "kill" && e.kill.Deleted:
			again = false
		case i == 0:
		case s.orphan && (e.kind == "create" || e.kind == "change" || e.kind == "reconcile"):
			again = true
		case e.kind == "create" && (s.hollow || s.asked() >= 0 && i > s.asked()):
			again = true
		}
	}
	return again
}

// checkBegin reports what is wrong with the turn that begins at the end of the log.
func (h *history) checkBegin(s *story, t Turn, now time.Time) error {
	n := len(s.log)
	at, wanted := h.due(s)
	ready := s.log[n-1].at
	if at.After(ready) {
		ready = at
	}
	wantEnding := runtime.Ending{}
	got := t.Ending
	if t.Phase != Syncing {
		wantEnding = s.ending(n)
		got.Message = ""
	} else {
		got = runtime.Ending{}
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
	case !t.Since.Equal(s.since(n)):
		return fmt.Errorf("PW-14: view since %v, want %v", t.Since, s.since(n))
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
func (s *story) lastWord(h *history) (at time.Time) {
	for _, o := range h.stories {
		at = later(at, o.log[len(o.log)-1].at)
	}
	return at
}
