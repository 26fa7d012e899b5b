package syncloop

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime"
)

type Pod = corev1.Pod

func newPod(uid string, change ...func(*Pod)) *Pod {
	p := &Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "ns", Name: uid}}
	for _, c := range change {
		c(p)
	}
	return p
}

func created(sec int64) func(*Pod) {
	return func(p *Pod) { p.CreationTimestamp = metav1.Unix(sec, 0) }
}

func inPhase(ph corev1.PodPhase) func(*Pod) { return func(p *Pod) { p.Status.Phase = ph } }

func deleting(p *Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

// callLog is what happened, line by line.
type callLog struct {
	mu    sync.Mutex
	began time.Time
	lines []string
}

func (d *callLog) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if !d.began.IsZero() {
		line = fmt.Sprint(time.Since(d.began)) + " " + line
	}
	d.lines = append(d.lines, line)
}

func (d *callLog) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.lines
	d.lines = nil
	return lines
}

// fakeWorkers records its calls.
type fakeWorkers struct {
	callLog
	states    map[types.UID]podworkers.State
	recreated []types.UID
	full      bool
}

func (f *fakeWorkers) Update(u podworkers.Update) {
	switch {
	case u.Orphan != nil:
		f.note("orphan %s", u.Orphan.UID)
	case u.Kill != nil && u.Kill.Deleted:
		f.note("remove %s", u.Pod.UID)
	default:
		op := map[podworkers.UpdateType]string{podworkers.PodCreate: "create", podworkers.PodUpdate: "change", podworkers.PodReconcile: "reconcile"}[u.Type]
		f.note("%s %s %s", op, u.Pod.UID, u.Pod.Status.Phase)
		if k := u.Kill; k != nil {
			f.note("kill %s: %s %t: %s", u.Pod.UID, k.Reason, k.Evicted, k.Message)
		}
	}
}

func (f *fakeWorkers) Requeue(uid types.UID, why podworkers.RequeueReason) {
	f.note("wake %s %v", uid, why)
}

func (f *fakeWorkers) RequestRecreation(uid types.UID) bool {
	if f.states[uid].Phase == podworkers.Syncing {
		return false
	}
	f.note("comes back %s", uid)
	return true
}

func (f *fakeWorkers) State(uid types.UID) (podworkers.State, bool) {
	st, ok := f.states[uid]
	return st, ok
}

func (f *fakeWorkers) ForgetFinished(uid types.UID, desired bool) bool {
	f.note("settle %s %v", uid, desired)
	return desired
}

func (f *fakeWorkers) SyncKnownPods(_ map[types.UID]struct{}, full bool) []types.UID {
	f.full = full
	return f.recreated
}

type fakeStatuses struct {
	*callLog
	saved map[types.UID]corev1.PodStatus
}

func (f fakeStatuses) Get(uid types.UID) (corev1.PodStatus, bool) {
	st, ok := f.saved[uid]
	return st, ok
}

func (f fakeStatuses) Reject(pod *Pod, reason, message string) corev1.PodStatus {
	f.note("refuse %s: %s: %s", pod.UID, reason, message)
	st := corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: podspec.RejectedPrefix + message}
	st.ContainerStatuses = f.saved[pod.UID].ContainerStatuses
	f.saved[pod.UID] = st
	return st
}

func (f fakeStatuses) Observe(pod *Pod, r runtime.Report) corev1.PodStatus {
	f.note("blocked %s: %s", pod.UID, r.Blocked.Message)
	st := corev1.PodStatus{Phase: corev1.PodPending, Reason: "Blocked", Message: r.Blocked.Message}
	f.saved[pod.UID] = st
	return st
}

func (f fakeStatuses) Forget(uid types.UID) {
	f.note("forget %s", uid)
	delete(f.saved, uid)
}

// podLimit admits up to that many pods.
type podLimit int

func (r podLimit) Admit(_ *Pod, others []*Pod) podspec.AdmitResult {
	if len(others) >= int(r) {
		return podspec.Rejected("OutOfpods", fmt.Sprintf("%d pods are here", len(others)))
	}
	return podspec.Admitted()
}

type fakeRecorder struct{ events []*corev1.Event }

func (r *fakeRecorder) Record(e *corev1.Event) { r.events = append(r.events, e) }

// backlog is Events or Probes.
type backlog[E any] struct {
	mu     sync.Mutex
	queue  []E
	notify chan struct{}
}

func newBacklog[E any]() *backlog[E] { return &backlog[E]{notify: make(chan struct{}, 1)} }

func (b *backlog[E]) put(es ...E) {
	b.mu.Lock()
	b.queue = append(b.queue, es...)
	b.mu.Unlock()
	notify.Send(b.notify)
}

func (b *backlog[E]) Notify() <-chan struct{} { return b.notify }

func (b *backlog[E]) Drain() []E {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queue
	b.queue = nil
	return q
}

var (
	_ Events = newBacklog[pleg.Event]()
	_ Probes = newBacklog[probe.ResultChange]()
)

// fakeLoopWorkers are LoopWorkers.
type fakeLoopWorkers struct {
	*callLog
	finished *backlog[types.UID]
	overdue  atomic.Int32
}

func (f *fakeLoopWorkers) PauseRequeues(paused bool)       { f.note("pause %t", paused) }
func (f *fakeLoopWorkers) OverduePods(time.Duration) int   { return int(f.overdue.Load()) }
func (f *fakeLoopWorkers) NotifyFinished() <-chan struct{} { return f.finished.Notify() }
func (f *fakeLoopWorkers) DrainFinished() []types.UID      { return f.finished.Drain() }

// podList is a PodCache.
type podList func() []runtime.Pod

func (l podList) Pods() []runtime.Pod { return l() }

// fakeInspector has the functions of an Inspector. Each may be nil.
type fakeInspector struct {
	isRunning   func(types.UID) bool
	uninspected func() []types.UID
}

// running returns an Inspector.
func running(isRunning func(types.UID) bool) fakeInspector {
	return fakeInspector{isRunning: isRunning}
}

func (f fakeInspector) IsRunning(uid types.UID) bool { return f.isRunning != nil && f.isRunning(uid) }

func (f fakeInspector) Uninspected() []types.UID {
	if f.uninspected == nil {
		return nil
	}
	return f.uninspected()
}

// fakeSources has the desired pods.
type fakeSources struct {
	unready map[string]bool
	pods    []*Pod
}

func (f *fakeSources) HasSynced(source string) bool {
	if source == "" {
		return len(f.unready) == 0
	}
	return !f.unready[source]
}

func (f *fakeSources) MayBeDesired(source, _, _ string) bool { return !f.HasSynced(source) }
func (f *fakeSources) Pods() []*Pod                          { return f.pods }

func runtimePod(uid, source string) runtime.Pod {
	return runtime.Pod{UID: types.UID(uid), Namespace: "ns", Name: uid, Sandboxes: []runtime.Sandbox{{ID: "s" + uid, Source: source}}}
}
