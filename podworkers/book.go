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

// graveTime is how long the end of a forgotten pod is remembered, so that its UID,
// should it come back, is not judged by views of its former life.
const graveTime = 10 * time.Minute

// book keeps the lives of all pods, and which static pod's turn it is. It is as
// pure as they are.
type book struct {
	policy policy
	lives  map[types.UID]*life
	names  map[string]*line // of static pods
	graves map[types.UID]time.Time
	synced bool // what should be known was told in full once
}

// line is the static pods of one full name.
type line struct {
	living  []types.UID // they have begun and not finished; one but for orphans
	waiting []types.UID // in the order in which they came
}

func newBook(p policy) *book {
	return &book{
		policy: p,
		lives:  map[types.UID]*life{},
		names:  map[string]*line{},
		graves: map[types.UID]time.Time{},
	}
}

// update takes a request. Gone says that nothing of the pod is alive in the
// runtime, so that one that is terminal by its status needs no end any more.
func (b *book) update(u Update, gone bool, now time.Time) []effect {
	if u.At.IsZero() {
		u.At = now
	}
	l := b.lives[u.uid()]
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
			l.ending.Grace = ownGrace(u.Pod)
			l.moveTo(Finished, &e)
			if u.Pod.DeletionTimestamp != nil { // whoever deleted it waits to be told
				l.ask(atOnce, u.At)
			}
			effects = b.spread(e)
		} else {
			effects = b.spread(l.update(u, now))
		}
	}
	if u.Kill != nil && l != nil {
		effects = append(effects, b.spread(l.kill(*u.Kill, u.At))...)
	}
	return effects
}

// orphan takes a pod that is known from the runtime only. One that has a life
// here is none, nor is one that was seen before it came to its end here.
func (b *book) orphan(l *life, u Update, now time.Time) []effect {
	died, dead := b.graves[u.Orphan.UID]
	if l != nil || dead && !u.Orphan.ObservedAt.After(died) {
		return nil
	}
	l = b.add(standIn(u.Orphan))
	e := effect{uid: l.uid}
	l.orphan, l.cause = true, Orphaned
	l.moveTo(Terminating, &e)
	l.ask(atOnce, u.At)
	l.ending = runtime.Ending{Grace: orphanGrace(*u.Orphan), Deleted: true}
	if l.queued { // it lives already, whoever else does
		l.queued = false
		n := b.names[l.name]
		n.waiting = slices.DeleteFunc(n.waiting, func(uid types.UID) bool { return uid == l.uid })
		n.living = append(n.living, l.uid)
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
func (b *book) add(pod *corev1.Pod) *life {
	l := &life{uid: pod.UID, name: podspec.FullName(pod), pod: pod, static: podspec.IsStatic(pod)}
	if died, dead := b.graves[l.uid]; dead {
		// On a coarse clock a look may have had the very time at which what it saw
		// of the former life was removed.
		l.since = died.Add(time.Nanosecond)
	}
	b.lives[l.uid] = l
	if !l.static {
		return l
	}
	n := b.names[l.name]
	if n == nil {
		n = &line{}
		b.names[l.name] = n
	}
	if len(n.living)+len(n.waiting) == 0 {
		n.living = append(n.living, l.uid)
	} else {
		n.waiting = append(n.waiting, l.uid)
		l.queued = true
	}
	return l
}

// spread adds what e means for other pods: when a static pod has finished, the
// next of its name begins.
func (b *book) spread(e effect) []effect {
	l := b.lives[e.uid]
	if !e.done || !l.static {
		return []effect{e}
	}
	n := b.names[l.name]
	other := func(uid types.UID) bool { return uid == l.uid }
	n.living, n.waiting = slices.DeleteFunc(n.living, other), slices.DeleteFunc(n.waiting, other)
	switch {
	case len(n.living) > 0:
	case len(n.waiting) == 0:
		delete(b.names, l.name)
	default:
		next := b.lives[n.waiting[0]]
		n.living, n.waiting = append(n.living, next.uid), n.waiting[1:]
		next.queued = false
		return []effect{e, {uid: next.uid}}
	}
	return []effect{e}
}

// nudge takes a reason to look at a pod again. Unknown pods are nobody's.
func (b *book) nudge(uid types.UID, why Wake, now time.Time) []effect {
	l := b.lives[uid]
	if l == nil {
		return nil
	}
	return []effect{l.nudge(why, now)}
}

// start begins the turn that pod wants, if it wants one.
func (b *book) start(uid types.UID) (Turn, bool) {
	l := b.lives[uid]
	if l == nil || !l.ready() {
		return Turn{}, false
	}
	return l.start(), true
}

// end takes what a turn came to.
func (b *book) end(t Turn, out runtime.Outcome, err error, now time.Time) []effect {
	l := b.lives[t.UID]
	effects := b.spread(l.end(t, out, err, b.policy, now))
	if l.orphan && l.phase == Finished && !l.restart {
		b.forget(l, now)
	}
	return effects
}

func (b *book) forget(l *life, now time.Time) {
	delete(b.lives, l.uid)
	b.graves[l.uid] = now
}

// sync takes the set of the pods that should be known, and returns those that are to
// be created once more.
func (b *book) sync(wanted map[types.UID]struct{}, full bool, now time.Time) (again []types.UID) {
	b.synced = b.synced || full
	for uid, l := range b.lives {
		_, ok := wanted[uid]
		if b.settle(l, ok, now) {
			again = append(again, uid)
		}
	}
	for uid, died := range b.graves {
		if now.Sub(died) > graveTime {
			delete(b.graves, uid)
		}
	}
	slices.Sort(again)
	return again
}

// settle forgets a pod that is over if it is not wanted, or if it came back, which
// it reports: then it is wanted, whatever an older set of pods may say.
func (b *book) settle(l *life, wanted bool, now time.Time) (again bool) {
	if !l.over() || wanted && !l.restart {
		return false
	}
	b.forget(l, now)
	return l.restart
}
