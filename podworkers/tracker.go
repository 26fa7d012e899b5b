package podworkers

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// tombstoneTTL is how long the end of a forgotten pod is remembered, so that its UID,
// should it come back, is not judged by views of its former life.
const tombstoneTTL = 10 * time.Minute

// tracker keeps the lives of all pods, and which static pod's turn it is. It is as
// pure as they are.
type tracker struct {
	policy     policy
	pods       map[types.UID]*podState
	staticPods map[string]*staticPodQueue // of static pods
	tombstones map[types.UID]time.Time
	synced     bool // what should be known was told in full once
}

// staticPodQueue is the static pods of one full name.
type staticPodQueue struct {
	active  []types.UID // they have begun and not finished; one but for orphans
	waiting []types.UID // in the order in which they came
}

func newBook(p policy) *tracker {
	return &tracker{
		policy:     p,
		pods:       map[types.UID]*podState{},
		staticPods: map[string]*staticPodQueue{},
		tombstones: map[types.UID]time.Time{},
	}
}

// update takes a request. Gone says that nothing of the pod is alive in the
// runtime, so that one that is terminal by its status needs no end any more.
func (b *tracker) update(u Update, gone bool, now time.Time) []effect {
	if u.StartTime.IsZero() {
		u.StartTime = now
	}
	l := b.pods[u.uid()]
	if u.Orphan != nil {
		return b.orphan(l, u, now)
	}
	var effects []effect
	if u.Pod != nil {
		fresh := l == nil
		if fresh {
			l = b.add(u.Pod)
		}
		if fresh && gone && terminal(u.Pod) {
			e := effect{uid: l.uid, done: true, killed: true}
			l.cause, l.queued = Completed, false
			l.termination.GracePeriod = ownGrace(u.Pod)
			l.moveTo(Finished, &e)
			if u.Pod.DeletionTimestamp != nil { // whoever deleted it waits to be told
				l.request(immediate, u.StartTime)
			}
			effects = b.startNextStaticPod(e)
		} else {
			effects = b.startNextStaticPod(l.update(u, now))
		}
	}
	if u.Kill != nil && l != nil {
		effects = append(effects, b.startNextStaticPod(l.kill(*u.Kill, u.StartTime))...)
	}
	return effects
}

// orphan takes a pod that is known from the runtime only. One that has a life
// here is none, nor is one that was seen before it came to its end here.
func (b *tracker) orphan(l *podState, u Update, now time.Time) []effect {
	died, dead := b.tombstones[u.Orphan.UID]
	if l != nil || dead && !u.Orphan.ObservedAt.After(died) {
		return nil
	}
	l = b.add(standIn(u.Orphan))
	e := effect{uid: l.uid}
	l.orphan, l.cause = true, Orphaned
	l.moveTo(Terminating, &e)
	l.request(immediate, u.StartTime)
	l.termination = runtime.Termination{GracePeriod: orphanGrace(*u.Orphan), Deleted: true}
	if l.queued { // it lives already, whoever else does
		l.queued = false
		n := b.staticPods[l.name]
		n.waiting = slices.DeleteFunc(n.waiting, func(uid types.UID) bool { return uid == l.uid })
		n.active = append(n.active, l.uid)
	}
	effects := []effect{e}
	if u.Kill != nil {
		effects = append(effects, l.kill(*u.Kill, now))
	}
	return effects
}

// standIn makes the pod that a Syncer is told about when only its remains are
// known.
func standIn(seen *runtime.Pod) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: seen.UID, Namespace: seen.Namespace, Name: seen.Name}}
	for i := range seen.Sandboxes {
		s := &seen.Sandboxes[i]
		if s.Source == "" {
			continue
		}
		pod.Annotations = map[string]string{podspec.AnnotationSource: s.Source}
		if static, said := s.Annotations[podspec.AnnotationStatic]; said {
			pod.Annotations[podspec.AnnotationStatic] = static
		}
		break
	}
	return pod
}

// add begins a life and lets a static pod join the line of its name.
func (b *tracker) add(pod *corev1.Pod) *podState {
	l := &podState{uid: pod.UID, name: podspec.FullName(pod), pod: pod, static: podspec.IsStatic(pod)}
	if died, dead := b.tombstones[l.uid]; dead {
		// On a coarse clock a look may have had the very time at which what it saw
		// of the former life was removed.
		l.newerThan = died.Add(time.Nanosecond)
	}
	b.pods[l.uid] = l
	if !l.static {
		return l
	}
	n := b.staticPods[l.name]
	if n == nil {
		n = &staticPodQueue{}
		b.staticPods[l.name] = n
	}
	if len(n.active)+len(n.waiting) == 0 {
		n.active = append(n.active, l.uid)
	} else {
		n.waiting = append(n.waiting, l.uid)
		l.queued = true
	}
	return l
}

// startNextStaticPod adds what e means for other pods: when a static pod has finished, the
// next of its name begins.
func (b *tracker) startNextStaticPod(e effect) []effect {
	l := b.pods[e.uid]
	if !e.done || !l.static {
		return []effect{e}
	}
	n := b.staticPods[l.name]
	other := func(uid types.UID) bool { return uid == l.uid }
	n.active, n.waiting = slices.DeleteFunc(n.active, other), slices.DeleteFunc(n.waiting, other)
	switch {
	case len(n.active) > 0:
	case len(n.waiting) == 0:
		delete(b.staticPods, l.name)
	default:
		next := b.pods[n.waiting[0]]
		n.active, n.waiting = append(n.active, next.uid), n.waiting[1:]
		next.queued = false
		return []effect{e, {uid: next.uid}}
	}
	return []effect{e}
}

// requeue takes a reason to look at a pod again. Unknown pods are nobody's.
func (b *tracker) requeue(uid types.UID, why RequeueReason, now time.Time) []effect {
	l := b.pods[uid]
	if l == nil {
		return nil
	}
	return []effect{l.requeue(why, now)}
}

// start begins the turn that pod wants, if it wants one.
func (b *tracker) start(uid types.UID) (SyncCall, bool) {
	l := b.pods[uid]
	if l == nil || !l.shouldStartSync() {
		return SyncCall{}, false
	}
	return l.start(), true
}

// end takes what a turn came to.
func (b *tracker) end(t SyncCall, out runtime.SyncResult, err error, now time.Time) []effect {
	l := b.pods[t.UID]
	effects := b.startNextStaticPod(l.end(t, out, err, b.policy, now))
	if l.orphan && l.phase == Finished && !l.recreate {
		b.forget(l, now)
	}
	return effects
}

func (b *tracker) forget(l *podState, now time.Time) {
	delete(b.pods, l.uid)
	b.tombstones[l.uid] = now
}

// sync takes the set of the pods that should be known, and returns those that are to
// be created once more.
func (b *tracker) sync(wanted map[types.UID]struct{}, full bool, now time.Time) (again []types.UID) {
	b.synced = b.synced || full
	for uid, l := range b.pods {
		_, ok := wanted[uid]
		if b.forgetFinished(l, ok, now) {
			again = append(again, uid)
		}
	}
	for uid, died := range b.tombstones {
		if now.Sub(died) > tombstoneTTL {
			delete(b.tombstones, uid)
		}
	}
	slices.Sort(again)
	return again
}

// forgetFinished forgets a pod that is over if it is not wanted, or if it came back, which
// it reports: then it is wanted, whatever an older set of pods may say.
func (b *tracker) forgetFinished(l *podState, wanted bool, now time.Time) (again bool) {
	if !l.isIdle() || wanted && !l.recreate {
		return false
	}
	b.forget(l, now)
	return l.recreate
}
