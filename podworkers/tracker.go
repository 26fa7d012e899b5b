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

// tombstoneTTL is how long a forgotten pod is remembered, so that states observed
// before are not attributed to a new pod with the same UID.
const tombstoneTTL = 10 * time.Minute

// cohortSize is how many pods are resynced together. Such pods were added one after the other, so that part of what is
// known of them shares pages of memory.
const cohortSize = 64

// tracker holds the state of all pods and the order of static pods. Like podState
// it is pure.
type tracker struct {
	policy     policy
	pods       map[types.UID]*podState
	added      uint32                     // how many pods were, modulo 2^32
	staticPods map[string]*staticPodQueue // by full name
	tombstones map[types.UID]time.Time    // when the pod was forgotten
	synced     bool                       // sync was called with a complete set
}

// staticPodQueue holds the static pods of one full name.
type staticPodQueue struct {
	active  []types.UID // started and not finished: one, or more that a previous process has started
	waiting []types.UID // in order of arrival
}

func newTracker(p policy) *tracker {
	return &tracker{
		policy:     p,
		pods:       map[types.UID]*podState{},
		staticPods: map[string]*staticPodQueue{},
		tombstones: map[types.UID]time.Time{},
	}
}

// update records an Update. The flag stopped states that nothing of the pod runs, so
// that a pod in a terminal phase need not be terminated, and no static pod has to wait
// for an orphan.
func (t *tracker) update(u Update, stopped bool, now time.Time) []effect {
	if u.StartTime.IsZero() {
		u.StartTime = now
	}
	s := t.pods[u.uid()]
	if u.Orphan != nil {
		return t.updateOrphan(s, u, stopped, now)
	}
	added := s == nil
	if added {
		s = t.add(u.Pod, podspec.IsStatic(u.Pod))
	}
	var effects []effect
	if added && stopped && podspec.IsTerminalPhase(u.Pod.Status.Phase) {
		effects = []effect{t.addTerminated(s, u)}
	} else {
		effects = t.startNextStaticPod(s.update(u, now))
	}
	if u.Kill != nil {
		effects = append(effects, t.startNextStaticPod(s.kill(*u.Kill, u.StartTime))...)
	}
	return effects
}

// addTerminated moves a new pod that a previous process has terminated to Terminated.
// What that process had no time to release or to report is left to Finish.
func (t *tracker) addTerminated(s *podState, u Update) effect {
	e := effect{uid: s.uid}
	t.skipQueue(s)
	s.cause = Completed
	s.termination.GracePeriod = podGracePeriod(u.Pod)
	s.moveTo(Terminated, &e)
	s.request(immediate, u.StartTime)
	return e
}

// skipQueue makes a static pod active that a previous process has started.
func (t *tracker) skipQueue(s *podState) {
	if !s.waitingToStart {
		return
	}
	s.waitingToStart = false
	q := t.staticPods[s.fullName]
	q.waiting = slices.DeleteFunc(q.waiting, func(uid types.UID) bool { return uid == s.uid })
	q.active = append(q.active, s.uid)
}

// updateOrphan adds an orphan in phase Terminating. A known pod is not an orphan,
// and neither is one that was observed before it was forgotten. No pod waits for one of
// which nothing runs, because its removal may never succeed.
func (t *tracker) updateOrphan(s *podState, u Update, stopped bool, now time.Time) []effect {
	forgottenAt, forgotten := t.tombstones[u.Orphan.UID]
	if s != nil || forgotten && !u.Orphan.ObservedAt.After(forgottenAt) {
		return nil
	}
	pod := orphanPod(u.Orphan)
	s = t.add(pod, !stopped && podspec.IsStatic(pod))
	e := effect{uid: s.uid}
	s.orphan, s.cause = true, Orphaned
	s.moveTo(Terminating, &e)
	s.request(immediate, u.StartTime)
	s.termination = runtime.Termination{GracePeriod: orphanGracePeriod(*u.Orphan), Deleted: true}
	t.skipQueue(s)
	effects := []effect{e}
	if u.Kill != nil {
		effects = append(effects, s.kill(*u.Kill, now))
	}
	return effects
}

// orphanPod returns the pod that a Syncer gets for an orphan.
func orphanPod(observed *runtime.Pod) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: observed.UID, Namespace: observed.Namespace, Name: observed.Name}}
	if o := observed.Object; o != nil {
		for _, name := range []string{podspec.AnnotationSource, podspec.AnnotationStatic} {
			if value, ok := o.Annotations[name]; ok {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, name, value)
			}
		}
	}
	for i := range observed.Sandboxes {
		sandbox := &observed.Sandboxes[i]
		if sandbox.Source == "" {
			continue
		}
		pod.Annotations = map[string]string{podspec.AnnotationSource: sandbox.Source}
		if static, ok := sandbox.Annotations[podspec.AnnotationStatic]; ok {
			pod.Annotations[podspec.AnnotationStatic] = static
		}
		break
	}
	return pod
}

// add adds a pod. A static pod joins the queue of its full name.
func (t *tracker) add(pod *corev1.Pod, static bool) *podState {
	s := &podState{uid: pod.UID, cohort: t.added / cohortSize, fullName: podspec.FullName(pod), pod: pod, static: static}
	t.added++
	if forgottenAt, forgotten := t.tombstones[s.uid]; forgotten {
		// On a coarse clock an inspection can have the time at which the containers
		// of the forgotten pod were removed.
		s.newerThan = forgottenAt.Add(time.Nanosecond)
	}
	t.pods[s.uid] = s
	if !s.static {
		return s
	}
	q := t.staticPods[s.fullName]
	if q == nil {
		q = &staticPodQueue{}
		t.staticPods[s.fullName] = q
	}
	if len(q.active)+len(q.waiting) == 0 {
		q.active = append(q.active, s.uid)
	} else {
		q.waiting = append(q.waiting, s.uid)
		s.waitingToStart = true
	}
	return s
}

// startNextStaticPod returns e and its effects on other pods: when a static pod has
// finished, the next one of its full name starts.
func (t *tracker) startNextStaticPod(e effect) []effect {
	s := t.pods[e.uid]
	if !e.finished || !s.static {
		return []effect{e}
	}
	q := t.staticPods[s.fullName]
	isFinished := func(uid types.UID) bool { return uid == s.uid }
	q.active, q.waiting = slices.DeleteFunc(q.active, isFinished), slices.DeleteFunc(q.waiting, isFinished)
	switch {
	case len(q.active) > 0:
	case len(q.waiting) == 0:
		delete(t.staticPods, s.fullName)
	default:
		next := t.pods[q.waiting[0]]
		q.active, q.waiting = append(q.active, next.uid), q.waiting[1:]
		next.waitingToStart = false
		return []effect{e, {uid: next.uid}}
	}
	return []effect{e}
}

// requeue records a reason for another call. Unknown pods are ignored.
func (t *tracker) requeue(uid types.UID, reason RequeueReason, now time.Time) []effect {
	s := t.pods[uid]
	if s == nil {
		return nil
	}
	return []effect{s.requeue(reason, now)}
}

// requeueDue records that the pod's requeueAt has come.
func (t *tracker) requeueDue(uid types.UID, now time.Time) []effect {
	s := t.pods[uid]
	if s == nil {
		return nil
	}
	return []effect{s.requeueDue(now)}
}

// start begins the next call for the pod. It reports false if none is due.
func (t *tracker) start(uid types.UID) (SyncCall, bool) {
	s := t.pods[uid]
	if s == nil || !s.shouldStartSync() {
		return SyncCall{}, false
	}
	return s.start(), true
}

// complete records the result of a call.
func (t *tracker) complete(call SyncCall, result runtime.SyncResult, err error, now time.Time) []effect {
	s := t.pods[call.UID]
	effects := t.startNextStaticPod(s.complete(call, result, err, t.policy, now))
	if s.orphan && s.phase == Finished && !s.recreate {
		t.forget(s, now)
	}
	return effects
}

func (t *tracker) forget(s *podState, now time.Time) {
	delete(t.pods, s.uid)
	t.tombstones[s.uid] = now
}

// sync forgets finished pods that are not desired, and expired tombstones. It
// returns the pods that must be added again, sorted by UID.
func (t *tracker) sync(desired map[types.UID]struct{}, complete bool, now time.Time) (recreated []types.UID) {
	t.synced = t.synced || complete
	for uid, s := range t.pods {
		_, ok := desired[uid]
		if t.forgetFinished(s, ok, now) {
			recreated = append(recreated, uid)
		}
	}
	for uid, forgottenAt := range t.tombstones {
		if now.Sub(forgottenAt) > tombstoneTTL {
			delete(t.tombstones, uid)
		}
	}
	slices.Sort(recreated)
	return recreated
}

// forgetFinished forgets an idle pod that is not desired or was recreated. It
// reports whether it was recreated, which is newer than desired.
func (t *tracker) forgetFinished(s *podState, desired bool, now time.Time) (recreated bool) {
	if !s.isIdle() || desired && !s.recreate {
		return false
	}
	t.forget(s, now)
	return s.recreate
}
