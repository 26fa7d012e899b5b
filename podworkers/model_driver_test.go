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

// modelDriver generates random requests and compares the subject with the model
// after each.
type modelDriver struct {
	t          *testing.T
	rnd        *rand.Rand
	sub        subject
	h          *history
	live       map[types.UID]*podHistory
	tombstones map[types.UID]time.Time
	synced     bool
	version    int
	script     []string
	waiters    []*killWaiter
}

// killWaiter records the results of one kill.
type killWaiter struct {
	s             *podHistory // nil: the pod was unknown
	hadTombstone  bool
	untilFinished bool
	mu            sync.Mutex
	results       []error
}

func (w *killWaiter) done(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.results = append(w.results, err)
}

var uids = []types.UID{"s1", "s2", "s3", "p1", "p2"}

func (x *modelDriver) record(format string, args ...any) {
	x.script = append(x.script, fmt.Sprintf("%v: ", x.sub.now().UnixMilli()%1e8)+fmt.Sprintf(format, args...))
}

func (x *modelDriver) fail(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("%s\nafter:\n  %s", fmt.Sprintf(format, args...), strings.Join(x.script, "\n  "))
}

func (x *modelDriver) history(uid types.UID) *podHistory {
	s := x.live[uid]
	if s == nil {
		s = &podHistory{uid: uid, static: uid[0] == 's', hasTombstone: x.tombstones[uid]}
		x.live[uid] = s
		x.h.pods = append(x.h.pods, s)
	}
	return s
}

// podFor returns a pod object with the next version.
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
	stopped := x.rnd.IntN(2) == 0
	x.record("%s %s %+v stopped=%v", kind, uid, facts, stopped)
	added := x.live[uid] == nil
	s := x.history(uid)
	s.wasTerminated = s.wasTerminated || added && stopped && facts.terminal
	s.add(x.h, entry{at: x.sub.now(), kind: kind, pod: facts})
	x.sub.update(Update{Type: op, Pod: pod}, stopped)
}

func (x *modelDriver) orphan(uid types.UID) {
	observed := &runtime.Pod{UID: uid, Namespace: "ns", Name: string(uid), ObservedAt: x.sub.now()}
	grace := time.Duration(1+x.rnd.IntN(20)) * time.Second
	sandbox := runtime.Sandbox{GracePeriod: grace}
	if uid[0] == 's' {
		observed.Name, sandbox.Source = "web", "file"
	}
	observed.Sandboxes = []runtime.Sandbox{sandbox}
	stopped := x.rnd.IntN(3) == 0
	x.record("orphan %s %v stopped=%v", uid, grace, stopped)
	if x.live[uid] == nil && observed.ObservedAt.After(x.tombstones[uid]) {
		s := x.history(uid)
		s.orphan, s.static = true, s.static && !stopped
		s.add(x.h, entry{at: x.sub.now(), kind: "orphan", pod: podFacts{own: grace, deletion: -1}})
	}
	x.sub.update(Update{Orphan: observed}, stopped)
}

func (x *modelDriver) kill(uid types.UID) {
	k := KillOptions{Termination: runtime.Termination{Deleted: x.rnd.IntN(2) == 0, Evicted: x.rnd.IntN(6) == 0}, Force: x.rnd.IntN(8) == 0, WaitUntilFinished: x.rnd.IntN(2) == 0}
	if x.rnd.IntN(2) == 0 {
		k.GracePeriod = time.Duration(x.rnd.IntN(40)) * time.Second
	}
	if x.rnd.IntN(3) == 0 {
		k.Reason = fmt.Sprintf("R%d", x.rnd.IntN(100))
	}
	x.record("kill %s %+v", uid, k)
	_, hadTombstone := x.tombstones[uid]
	w := &killWaiter{s: x.live[uid], hadTombstone: hadTombstone, untilFinished: k.WaitUntilFinished}
	x.waiters = append(x.waiters, w)
	if w.s != nil {
		w.s.add(x.h, entry{at: x.sub.now(), kind: "kill", kill: k})
	}
	k.Done = w.done
	x.sub.kill(uid, k)
}

func (x *modelDriver) requeue(uid types.UID) {
	reason, kind := RequeueEvent, "event"
	if x.rnd.IntN(4) == 0 {
		reason, kind = RequeueNow, "now"
	}
	x.record("requeue %s %s", uid, kind)
	if s := x.live[uid]; s != nil {
		s.add(x.h, entry{at: x.sub.now(), kind: kind})
	}
	x.sub.requeue(uid, reason)
}

// finish ends the call of a pod that is under way.
func (x *modelDriver) finish(s *podHistory) {
	t := s.log[s.last("begin", len(s.log))].call
	var result runtime.SyncResult
	var err error
	switch x.rnd.IntN(9) {
	case 0:
		err = errors.New("sync failed")
	case 1:
		err = fmt.Errorf("network: %w", runtime.ErrNotReady)
	case 2:
		err = errPanic
	case 3, 4:
		result.Unchanged, result.Settled = true, x.rnd.IntN(2) == 0
	case 5:
		result.Terminal = true
	}
	if t.Phase != Syncing {
		result = runtime.SyncResult{}
	} else if x.rnd.IntN(3) == 0 && !errors.Is(err, errPanic) {
		result.RequeueAt = x.sub.now().Add(time.Duration(x.rnd.IntN(90)-5) * time.Second)
	}
	x.record("end of %v %s: %+v %v", t.Phase, s.uid, result, err)
	s.add(x.h, entry{at: x.sub.now(), kind: "end", call: t, result: result, err: err})
	x.sub.finish(s.uid, result, err)
	if s.orphan && x.h.phase(s) == Finished && !x.h.isRecreated(s) {
		x.forget(s)
	}
}

func (x *modelDriver) forget(s *podHistory) {
	x.tombstones[s.uid] = x.sub.now()
	delete(x.live, s.uid)
}

// isIdle reports whether nothing is left to do for a pod.
func (x *modelDriver) isIdle(s *podHistory) bool {
	_, desired := x.h.nextCall(s)
	return x.h.phase(s) == Finished && !s.running() && !desired
}

func (x *modelDriver) syncKnown() {
	desired := map[types.UID]struct{}{}
	for _, uid := range uids {
		if x.rnd.IntN(2) == 0 {
			desired[uid] = struct{}{}
		}
	}
	complete := x.rnd.IntN(3) == 0
	x.record("sync %v complete=%v", slices.Sorted(maps.Keys(desired)), complete)
	var recreated []types.UID
	for _, uid := range uids {
		s := x.live[uid]
		if s == nil || !x.isIdle(s) {
			continue
		}
		_, ok := desired[uid]
		switch wasRecreated := x.h.isRecreated(s); {
		case wasRecreated:
			recreated = append(recreated, uid)
			x.forget(s)
		case !ok:
			x.forget(s)
		}
	}
	slices.Sort(recreated)
	maps.DeleteFunc(x.tombstones, func(_ types.UID, at time.Time) bool { return x.sub.now().Sub(at) > 10*time.Minute })
	x.synced = x.synced || complete
	if got := x.sub.sync(desired, complete); !slices.Equal(got, recreated) {
		x.fail("PW-10: recreated: got %v, want %v", got, recreated)
	}
}

func (x *modelDriver) restart() {
	x.record("the agent restarts")
	x.sub.restart()
	if _, ok := x.sub.(*realSubject); ok {
		for _, w := range x.waiters {
			if len(w.results) != 1 {
				x.fail("PW-7: got results %v when the workers stopped", w.results)
			}
		}
	}
	x.waiters, x.h, x.synced = nil, &history{}, false
	x.live, x.tombstones = map[types.UID]*podHistory{}, map[types.UID]time.Time{}
}

func (x *modelDriver) step() {
	uid := uids[x.rnd.IntN(len(uids))]
	var working []*podHistory
	for _, u := range uids {
		if s := x.live[u]; s != nil && s.running() {
			working = append(working, s)
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
		x.requeue(uid)
	case n < 75 && len(working) > 0:
		x.finish(working[x.rnd.IntN(len(working))])
	case n < 92:
		d := time.Duration(x.rnd.IntN(2000)) * time.Millisecond
		if x.rnd.IntN(3) == 0 {
			d *= 40
		}
		x.record("wait %v", d)
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
	for _, b := range x.sub.started() {
		s := x.live[b.call.UID]
		if s == nil {
			x.fail("PW-1: %v of %s, which is unknown", b.call.Phase, b.call.UID)
		}
		x.script = append(x.script, fmt.Sprintf("  -> %v %s", b.call.Phase, b.call.UID))
		if err := x.h.checkBegin(s, b.call, b.at); err != nil {
			x.fail("%s: %v", s.uid, err)
		}
		s.add(x.h, entry{at: b.at, kind: "begin", call: b.call})
	}
	for _, uid := range uids {
		x.checkState(uid)
	}
	x.checkWaiters()
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
		phase                         Phase
		queued, working, over, orphan bool
	}
	phase := x.h.phase(s)
	want := facts{phase, phase == Syncing && x.h.isWaitingAt(s, x.h.seq), s.running(), x.isIdle(s), s.orphan}
	if got := (facts{st.Phase, st.WaitingToStart, st.Working, st.Idle, st.Orphan}); got != want {
		x.fail("%s: state %+v, want %+v", uid, got, want)
	}
	if s.running() {
		if got, want := x.sub.cancelled(uid), s.cancelled(); got != want {
			x.fail("PW-6: %s cancelled: %v, want %v", uid, got, want)
		}
	} else if at, desired := x.h.nextCall(s); desired && !at.After(x.sub.now()) {
		x.fail("PW-8, PW-14: %s was due at %v", uid, at)
	}
}

// checkAnswers checks PW-13.
func (x *modelDriver) checkAnswers(w *realSubject, uid types.UID, s *podHistory) {
	x.t.Helper()
	got := [...]bool{w.IsFinished(uid), w.CouldHaveRunningContainers(uid), w.ShouldPodContainersBeTerminating(uid), w.ShouldPodContentBeRemoved(uid)}
	want := [...]bool{false, !x.synced, x.synced, x.synced}
	if s != nil {
		phase, e := x.h.phase(s), s.termination(len(s.log))
		if x.h.isExpired(s) { // later requests are ignored
			e.Evicted = s.termination(s.terminationIndex() + 1).Evicted
		}
		want = [...]bool{x.isIdle(s), phase < Terminated, phase > Syncing, phase > Terminating && (e.Deleted || e.Evicted)}
	}
	if got != want {
		x.fail("PW-13: %s: answers %v, want %v", uid, got, want)
	}
}

// checkWaiters checks PW-7.
func (x *modelDriver) checkWaiters() {
	x.t.Helper()
	if _, ok := x.sub.(*realSubject); !ok {
		return
	}
	for i, w := range x.waiters {
		w.mu.Lock()
		results := slices.Clone(w.results)
		w.mu.Unlock()
		want := 1
		if w.s != nil && x.live[w.s.uid] == w.s {
			phase := x.h.phase(w.s)
			left := w.s.termination(len(w.s.log)).Deleted && !w.s.released(len(w.s.log)) && !w.s.orphan && !x.h.isExpired(w.s)
			if phase < Terminated || w.untilFinished && (phase < Finished || left) {
				want = 0
			}
			if want == 0 && len(results) == 1 && w.s.wasNotified {
				want = 1 // it was notified before a deletion required another Finish
			}
			w.s.wasNotified = w.s.wasNotified || want == 1
		}
		if len(results) != want {
			x.fail("PW-7: waiter %d got %v, want %d results", i, results, want)
		}
		if want == 1 && (w.s != nil || w.hadTombstone) != (results[0] == nil) {
			x.fail("PW-7: waiter %d got %v", i, results[0])
		}
	}
}

func newModelDriver(t *testing.T, seed uint64, sub subject) *modelDriver {
	return &modelDriver{
		t: t, rnd: rand.New(rand.NewPCG(seed, 7)), sub: sub, h: &history{},
		live: map[types.UID]*podHistory{}, tombstones: map[types.UID]time.Time{},
	}
}

const steps = 100

// PW-1..PW-14: random requests, checked after every step, on the pure half.
func TestTracker_RandomSequences(t *testing.T) {
	for i := range uint64(*seeds) {
		seed := *firstSeed + i
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			x := newModelDriver(t, seed, newTrackerSubject())
			for range steps {
				x.step()
			}
		})
	}
}

// PW-1..PW-14: the same on running Workers.
func TestWorkers_RandomSequences(t *testing.T) {
	for i := range uint64(*seeds) {
		seed := *firstSeed + i
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newModelDriver(t, seed, newRealSubject(t))
				for range steps {
					x.step()
				}
				require.NotEmpty(t, x.script)
			})
		})
	}
}
