package podworkers

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// modelDriver tells of a history as it is made and checks it against the reference.
type modelDriver struct {
	t       *testing.T
	rnd     *rand.Rand
	sub     subject
	h       *history
	live    map[types.UID]*podHistory
	graves  map[types.UID]time.Time
	synced  bool
	version int
	script  []string
	waits   []*waiting
}

// waiting is a Kill that somebody waits for.
type waiting struct {
	s         *podHistory // nil: the pod was not known
	buried    bool
	reclaimed bool
	mu        sync.Mutex
	told      []error
}

func (w *waiting) tell(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, err)
}

var uids = []types.UID{"s1", "s2", "s3", "p1", "p2"}

func (x *modelDriver) say(format string, args ...any) {
	x.script = append(x.script, fmt.Sprintf("%v: ", x.sub.now().UnixMilli()%1e8)+fmt.Sprintf(format, args...))
}

func (x *modelDriver) fail(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("%s\nafter:\n  %s", fmt.Sprintf(format, args...), strings.Join(x.script, "\n  "))
}

func (x *modelDriver) story(uid types.UID) *podHistory {
	s := x.live[uid]
	if s == nil {
		s = &podHistory{uid: uid, static: uid[0] == 's', hasTombstone: x.graves[uid]}
		x.live[uid] = s
		x.h.stories = append(x.h.stories, s)
	}
	return s
}

// podFor makes a pod of the next version.
func (x *modelDriver) podFor(uid types.UID) (*corev1.Pod, podFacts) {
	x.version++
	f := podFacts{version: fmt.Sprint(x.version), own: time.Duration(x.rnd.IntN(40)) * time.Second, deletion: -1}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "ns", Name: string(uid), Labels: map[string]string{"v": f.version}}}
	if uid[0] == 's' {
		pod.Name = "web"
		pod.Annotations = map[string]string{podspec.AnnotationSource: "file"}
	}
	pod.Spec.TerminationGracePeriodSeconds = new(int64(f.own / time.Second))
	switch x.rnd.IntN(12) {
	case 0:
		f.deletion = time.Duration(x.rnd.IntN(40)) * time.Second
		pod.DeletionTimestamp = &metav1.Time{Time: x.sub.now()}
		pod.DeletionGracePeriodSeconds = new(int64(f.deletion / time.Second))
	case 1:
		f.terminal = true
		pod.Status.Phase = corev1.PodSucceeded
	}
	return pod, f
}

func (x *modelDriver) update(uid types.UID) {
	op := []UpdateType{PodCreate, PodCreate, PodUpdate, PodReconcile}[x.rnd.IntN(4)]
	kind := map[UpdateType]string{PodCreate: "create", PodUpdate: "change", PodReconcile: "reconcile"}[op]
	pod, facts := x.podFor(uid)
	gone := x.rnd.IntN(2) == 0
	x.say("%s %s %+v gone=%v", kind, uid, facts, gone)
	fresh := x.live[uid] == nil
	s := x.story(uid)
	s.noSyncNeeded = s.noSyncNeeded || fresh && gone && facts.terminal
	s.add(x.h, entry{at: x.sub.now(), kind: kind, pod: facts})
	x.sub.update(Update{Type: op, Pod: pod}, gone)
}

func (x *modelDriver) orphan(uid types.UID) {
	seen := &runtime.Pod{UID: uid, Namespace: "ns", Name: string(uid), ObservedAt: x.sub.now()}
	grace := time.Duration(1+x.rnd.IntN(20)) * time.Second
	sandbox := runtime.Sandbox{GracePeriod: grace}
	if uid[0] == 's' {
		seen.Name, sandbox.Source = "web", "file"
	}
	seen.Sandboxes = []runtime.Sandbox{sandbox}
	x.say("orphan %s %v", uid, grace)
	if x.live[uid] == nil && seen.ObservedAt.After(x.graves[uid]) {
		s := x.story(uid)
		s.orphan = true
		s.add(x.h, entry{at: x.sub.now(), kind: "orphan", pod: podFacts{own: grace, deletion: -1}})
	}
	x.sub.update(Update{Orphan: seen}, false)
}

func (x *modelDriver) kill(uid types.UID) {
	k := KillOptions{Deleted: x.rnd.IntN(2) == 0, Evicted: x.rnd.IntN(6) == 0, Force: x.rnd.IntN(8) == 0, WaitUntilFinished: x.rnd.IntN(2) == 0}
	if x.rnd.IntN(2) == 0 {
		k.GracePeriod = time.Duration(x.rnd.IntN(40)) * time.Second
	}
	if x.rnd.IntN(3) == 0 {
		k.Reason = fmt.Sprintf("R%d", x.rnd.IntN(100))
	}
	x.say("kill %s %+v", uid, k)
	_, buried := x.graves[uid]
	w := &waiting{s: x.live[uid], buried: buried, reclaimed: k.WaitUntilFinished}
	x.waits = append(x.waits, w)
	if w.s != nil {
		w.s.add(x.h, entry{at: x.sub.now(), kind: "kill", kill: k})
	}
	k.Done = w.tell
	x.sub.end(uid, k)
}

func (x *modelDriver) wake(uid types.UID) {
	why, kind := RequeueEvent, "event"
	if x.rnd.IntN(4) == 0 {
		why, kind = RequeueNow, "now"
	}
	x.say("wake %s %s", uid, kind)
	if s := x.live[uid]; s != nil {
		s.add(x.h, entry{at: x.sub.now(), kind: kind})
	}
	x.sub.wake(uid, why)
}

// finish ends the call that is under way for a pod.
func (x *modelDriver) finish(s *podHistory) {
	t := s.log[s.last("begin", len(s.log))].turn
	var out runtime.SyncResult
	var err error
	switch x.rnd.IntN(9) {
	case 0:
		err = errors.New("no luck")
	case 1:
		err = fmt.Errorf("network: %w", runtime.ErrNotReady)
	case 2:
		err = errPanic
	case 3, 4:
		out.Unchanged = true
	case 5:
		out.Terminal = true
	}
	if t.Phase != Syncing {
		out = runtime.SyncResult{}
	} else if x.rnd.IntN(3) == 0 && !errors.Is(err, errPanic) {
		out.RequeueAt = x.sub.now().Add(time.Duration(x.rnd.IntN(90)-5) * time.Second)
	}
	x.say("end of %v %s: %+v %v", t.Phase, s.uid, out, err)
	s.add(x.h, entry{at: x.sub.now(), kind: "end", turn: t, out: out, err: err})
	x.sub.finish(s.uid, out, err)
	if s.orphan && x.h.phase(s) == Finished && !x.h.restart(s) {
		x.bury(s)
	}
}

func (x *modelDriver) bury(s *podHistory) {
	x.graves[s.uid] = x.sub.now()
	delete(x.live, s.uid)
}

// over reports whether there is nothing left to do for a pod.
func (x *modelDriver) over(s *podHistory) bool {
	_, wanted := x.h.due(s)
	return x.h.phase(s) == Finished && !s.running() && !wanted
}

func (x *modelDriver) syncKnown() {
	wanted := map[types.UID]struct{}{}
	for _, uid := range uids {
		if x.rnd.IntN(2) == 0 {
			wanted[uid] = struct{}{}
		}
	}
	full := x.rnd.IntN(3) == 0
	x.say("sync %v full=%v", slices.Sorted(maps.Keys(wanted)), full)
	var again []types.UID
	for _, uid := range uids {
		s := x.live[uid]
		if s == nil || !x.over(s) {
			continue
		}
		_, ok := wanted[uid]
		switch back := x.h.restart(s); {
		case back:
			again = append(again, uid)
			x.bury(s)
		case !ok:
			x.bury(s)
		}
	}
	slices.Sort(again)
	maps.DeleteFunc(x.graves, func(_ types.UID, at time.Time) bool { return x.sub.now().Sub(at) > 10*time.Minute })
	x.synced = x.synced || full
	if got := x.sub.sync(wanted, full); !slices.Equal(got, again) {
		x.fail("PW-10: to be created anew: got %v, want %v", got, again)
	}
}

func (x *modelDriver) restart() {
	x.say("the agent starts anew")
	x.sub.restart()
	if _, ok := x.sub.(*realSubject); ok {
		for _, w := range x.waits {
			if len(w.told) != 1 {
				x.fail("PW-7: told %v when the workers stopped", w.told)
			}
		}
	}
	x.waits, x.h, x.synced = nil, &history{}, false
	x.live, x.graves = map[types.UID]*podHistory{}, map[types.UID]time.Time{}
}

func (x *modelDriver) step() {
	uid := uids[x.rnd.IntN(len(uids))]
	var busy []*podHistory
	for _, u := range uids {
		if s := x.live[u]; s != nil && s.running() {
			busy = append(busy, s)
		}
	}
	switch n := x.rnd.IntN(100); {
	case n < 20:
		x.update(uid)
	case n < 24:
		x.orphan(uid)
	case n < 34:
		x.kill(uid)
	case n < 44:
		x.wake(uid)
	case n < 75 && len(busy) > 0:
		x.finish(busy[x.rnd.IntN(len(busy))])
	case n < 92:
		d := time.Duration(x.rnd.IntN(2000)) * time.Millisecond
		if x.rnd.IntN(3) == 0 {
			d *= 40
		}
		x.say("wait %v", d)
		x.sub.advance(d + 1)
	case n < 99:
		x.syncKnown()
	case x.rnd.IntN(3) == 0:
		x.restart()
	}
	x.check()
}

func (x *modelDriver) check() {
	x.t.Helper()
	for _, b := range x.sub.begun() {
		s := x.live[b.turn.UID]
		if s == nil {
			x.fail("PW-1: %v of %s, which nobody knows", b.turn.Phase, b.turn.UID)
		}
		x.script = append(x.script, fmt.Sprintf("  -> %v %s", b.turn.Phase, b.turn.UID))
		if err := x.h.checkBegin(s, b.turn, b.at); err != nil {
			x.fail("%s: %v", s.uid, err)
		}
		s.add(x.h, entry{at: b.at, kind: "begin", turn: b.turn})
	}
	for _, uid := range uids {
		x.checkState(uid)
	}
	x.checkWaits()
}

func (x *modelDriver) checkState(uid types.UID) {
	x.t.Helper()
	s := x.live[uid]
	st, known := x.sub.state(uid)
	if known != (s != nil) {
		x.fail("PW-13: %s known: %v", uid, known)
	}
	if w, ok := x.sub.(*realSubject); ok {
		x.checkAnswers(w, uid, s)
	}
	if s == nil {
		return
	}
	type facts struct {
		phase                      Phase
		queued, busy, over, orphan bool
	}
	phase := x.h.phase(s)
	want := facts{phase, phase == Syncing && x.h.queuedAt(s, x.h.seq), s.running(), x.over(s), s.orphan}
	if got := (facts{st.Phase, st.WaitingToStart, st.Working, st.Idle, st.Orphan}); got != want {
		x.fail("%s: is %+v, want %+v", uid, got, want)
	}
	if s.running() {
		if got, want := x.sub.cancelled(uid), s.cancelled(); got != want {
			x.fail("PW-6: %s cancelled: %v, want %v", uid, got, want)
		}
	} else if at, wanted := x.h.due(s); wanted && !at.After(x.sub.now()) {
		x.fail("PW-8, PW-14: %s should be under way since %v", uid, at)
	}
}

// checkAnswers checks PW-13.
func (x *modelDriver) checkAnswers(w *realSubject, uid types.UID, s *podHistory) {
	x.t.Helper()
	got := [...]bool{w.IsFinished(uid), w.CouldHaveRunningContainers(uid), w.ShouldPodContainersBeTerminating(uid), w.ShouldPodContentBeRemoved(uid)}
	want := [...]bool{false, !x.synced, x.synced, x.synced}
	if s != nil {
		phase, e := x.h.phase(s), s.ending(len(s.log))
		if x.h.isExpired(s) { // what came after its end is not for it
			e.Evicted = s.ending(s.asked() + 1).Evicted
		}
		want = [...]bool{x.over(s), phase < Terminated, phase > Syncing, phase > Terminating && (e.Deleted || e.Evicted)}
	}
	if got != want {
		x.fail("PW-13: %s: answers %v, want %v", uid, got, want)
	}
}

// checkWaits checks PW-7.
func (x *modelDriver) checkWaits() {
	x.t.Helper()
	if _, ok := x.sub.(*realSubject); !ok {
		return
	}
	for i, w := range x.waits {
		w.mu.Lock()
		told := slices.Clone(w.told)
		w.mu.Unlock()
		want := 1
		if w.s != nil && x.live[w.s.uid] == w.s {
			phase := x.h.phase(w.s)
			left := w.s.ending(len(w.s.log)).Deleted && !w.s.released(len(w.s.log)) && !w.s.orphan && !x.h.isExpired(w.s)
			if phase < Terminated || w.reclaimed && (phase < Finished || left) {
				want = 0
			}
			if want == 0 && len(told) == 1 && w.s.hadEnded {
				want = 1 // it had been told before more was left to do
			}
			w.s.hadEnded = w.s.hadEnded || want == 1
		}
		if len(told) != want {
			x.fail("PW-7: waiter %d was told %v, want %d", i, told, want)
		}
		if want == 1 && (w.s != nil || w.buried) != (told[0] == nil) {
			x.fail("PW-7: waiter %d was told %v", i, told[0])
		}
	}
}

func newTeller(t *testing.T, seed uint64, sub subject) *modelDriver {
	return &modelDriver{
		t: t, rnd: rand.New(rand.NewPCG(seed, 7)), sub: sub, h: &history{},
		live: map[types.UID]*podHistory{}, graves: map[types.UID]time.Time{},
	}
}

const steps = 100

// PW-1..PW-14: random histories, each checked after every step. What the book alone
// decides:
func TestHistoriesOfTheBook(t *testing.T) {
	for i := range uint64(*seeds) {
		seed := *firstSeed + i
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			x := newTeller(t, seed, newBookSubject())
			for range steps {
				x.step()
			}
		})
	}
}

// And what workers do that run.
func TestHistoriesOfWorkers(t *testing.T) {
	for i := range uint64(*seeds) {
		seed := *firstSeed + i
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTeller(t, seed, newRealSubject(t))
				for range steps {
					x.step()
				}
				require.NotEmpty(t, x.script)
			})
		})
	}
}
