package syncloop

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// Workers run the lifecycle of pods. None of the methods blocks.
type Workers interface {
	Update(u podworkers.Update)
	Requeue(uid types.UID, why podworkers.RequeueReason)
	State(uid types.UID) (podworkers.State, bool)
	// RequestRecreation reports whether a pod of that UID is terminating, or is finished
	// and not forgotten. It then marks the pod to be started again.
	RequestRecreation(uid types.UID) bool
}

// Statuses stores the latest status of each pod. None of the methods blocks.
type Statuses interface {
	Get(uid types.UID) (corev1.PodStatus, bool)
	// Reject makes the pod Failed.
	Reject(pod *corev1.Pod, reason, message string) corev1.PodStatus
	// Observe stores the status that follows from a report.
	Observe(pod *corev1.Pod, r runtime.Report) corev1.PodStatus
	// Forget drops the status, so that a new pod of that UID starts without one.
	Forget(uid types.UID)
}

// ProbeResults takes over the probe results of pods that already run.
type ProbeResults interface {
	// Adopt starts the pod's probes from the readiness in its status. It does not block.
	Adopt(uid types.UID, st corev1.PodStatus)
}

// Inspector knows the pods in the runtime, from memory. See pleg.Generator.
type Inspector interface {
	// IsRunning reports whether a container or sandbox of the pod runs, or may run because
	// the pod was not inspected yet. Such a pod is adopted instead of admitted.
	IsRunning(uid types.UID) bool
	// Uninspected returns the pods in the runtime whose state is not known, because they
	// were not inspected yet. Their resources are kept.
	Uninspected() []types.UID
}

// noInspector is the Inspector of an empty runtime.
type noInspector struct{}

func (noInspector) IsRunning(types.UID) bool { return false }
func (noInspector) Uninspected() []types.UID { return nil }

// Admitter decides whether a new pod may run beside the other pods. These are in no
// order: the admitted pods that have not ended, and those that have run since before
// this process started and may be desired. Admit does no I/O and does not block.
type Admitter interface {
	Admit(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult
}

// Recorder receives Kubernetes events. It does not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// PodManagerConfig describes a PodManager.
type PodManagerConfig struct {
	Workers   Workers    // required
	Statuses  Statuses   // required
	Admitters []Admitter // called in this order until one rejects. Default: all pods are admitted
	// Preemptor chooses the pods that are evicted so that a critical pod can run. Default: no
	// pod is evicted for another one.
	Preemptor Preemptor
	// Probes is given the last status of each pod that is adopted. Default: none.
	Probes ProbeResults

	Inspector Inspector // Default: no pod runs
	// Expected returns the pods that may be added later: those that a source contains,
	// and those of a previous process whose source has not synced. If they run, they
	// count as other pods for admission. Default: none.
	Expected func() []*corev1.Pod
	// Observed returns the state of a pod in the runtime, from memory, and Reported all pods
	// with the spec and the status that were reported last. The status of an invalid pod that
	// runs follows from both. Default: it stays as it was. What a previous process has allocated
	// follows from Reported. Default: from Statuses, which have the limits that the containers had.
	Observed func(uid types.UID) (runtime.Pod, bool)
	Reported func() []*corev1.Pod

	// UnderPressure reports, from memory, whether the node lacks a resource for which it
	// evicts. Evicted static pods are not started again meanwhile. Default: never.
	UnderPressure func() bool

	Recorder Recorder     // Default: events are dropped
	Logger   *slog.Logger // Default: discard
	Hooks    PodManagerHooks
}

// PodManagerHooks are called when new pods are handled. Any may be nil. They must not
// block.
type PodManagerHooks struct {
	Admitted func(pod *corev1.Pod)
	Adopted  func(pod *corev1.Pod)
	Rejected func(pod *corev1.Pod, reason, message string)
	// Recreated is called for a pod that starts because it was desired again while a pod of its
	// UID was terminating, or its resources were being removed.
	Recreated func(pod *corev1.Pod)
	// Preempted is called for a pod that is evicted in favour of another, which lacks the
	// resource.
	Preempted func(pod, preemptor *corev1.Pod, resource corev1.ResourceName)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h PodManagerHooks) Join(log *slog.Logger, next PodManagerHooks) PodManagerHooks {
	return PodManagerHooks{
		Admitted:  safe.Hook1(log, "PodManager.Admitted", h.Admitted, next.Admitted),
		Adopted:   safe.Hook1(log, "PodManager.Adopted", h.Adopted, next.Adopted),
		Rejected:  safe.Hook3(log, "PodManager.Rejected", h.Rejected, next.Rejected),
		Recreated: safe.Hook1(log, "PodManager.Recreated", h.Recreated, next.Recreated),
		Preempted: safe.Hook3(log, "PodManager.Preempted", h.Preempted, next.Preempted),
	}
}

// guarded returns hooks that recover panics.
func (h PodManagerHooks) guarded(log *slog.Logger) PodManagerHooks {
	return PodManagerHooks{
		Admitted:  safe.Hook1(log, "Admitted", h.Admitted),
		Adopted:   safe.Hook1(log, "Adopted", h.Adopted),
		Rejected:  safe.Hook3(log, "Rejected", h.Rejected),
		Recreated: safe.Hook1(log, "Recreated", h.Recreated),
		Preempted: safe.Hook3(log, "Preempted", h.Preempted),
	}
}

func (c *PodManagerConfig) fill() error {
	var errs []error
	if c.Workers == nil {
		errs = append(errs, errors.New("syncloop: PodManagerConfig.Workers required"))
	}
	if c.Statuses == nil {
		errs = append(errs, errors.New("syncloop: PodManagerConfig.Statuses required"))
	}
	if c.Inspector == nil {
		c.Inspector = noInspector{}
	}
	if c.Expected == nil {
		c.Expected = func() []*corev1.Pod { return nil }
	}
	if c.UnderPressure == nil {
		c.UnderPressure = func() bool { return false }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = c.Hooks.guarded(c.Logger)
	c.Recorder = safe.Events(c.Logger, c.Recorder)
	return errors.Join(errs...)
}

// desiredPod is a pod that a source contains.
type desiredPod struct {
	pod             *corev1.Pod
	rejected        bool
	leftAlone       bool        // it is invalid and runs. No worker knows it
	reported        *corev1.Pod // of a pod that is left alone: as the process that started it has reported it; may be nil
	preemption      *preemption // why the pod waits; nil: it does not. No worker knows a pod that waits
	waitsForCleanup bool        // resources of an earlier pod of the UID are being removed; no worker knows the pod
}

// PodManager is a Handler. It stores the desired pods, admits new ones and passes all
// changes to the workers. AddDesiredUIDs and Problems may be called from any goroutine,
// the other methods from one at a time.
type PodManager struct {
	cfg PodManagerConfig
	// terminatePredecessors is that of the Housekeeper; nil: there is none.
	terminatePredecessors func(added []*corev1.Pod)

	// activePods are the other pods for admission. Some may have ended since: they
	// are removed before a pod is rejected because of them.
	activePods podSet
	// expected are those of activePods that were not added yet; nil before the first
	// change.
	expected map[types.UID]struct{}
	// removed are the removed pods, with the time, for as long as other packages may
	// remember them. A pod of such a UID is a new one.
	removed      map[types.UID]time.Time
	lastPrunedAt time.Time // of removed
	// pendingResizes are pods with resources that the node lacks; desired has them with
	// the resources that were allocated.
	pendingResizes   map[types.UID]*corev1.Pod
	shrinking        map[types.UID]struct{} // those of activePods that have more than they request; see putActive
	resizesRetriedAt time.Time
	preemptors       []types.UID // pods that wait because of a preemption, in order of arrival
	// reported is reportedByUID before the change that is being handled, which may have many pods; nil: none is.
	reported func() map[types.UID]*corev1.Pod

	mu           sync.Mutex                // guards what follows
	desired      map[types.UID]*desiredPod // written only by the loop
	reservedUIDs map[types.UID]struct{}    // pods that must not start now; see reserveUID
	retries      map[types.UID]*retry      // written only by the loop
}

// NewPodManager returns a PodManager.
func NewPodManager(cfg PodManagerConfig) (*PodManager, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &PodManager{
		cfg: cfg, removed: map[types.UID]time.Time{}, pendingResizes: map[types.UID]*corev1.Pod{}, shrinking: map[types.UID]struct{}{},
		desired: map[types.UID]*desiredPod{}, reservedUIDs: map[types.UID]struct{}{}, retries: map[types.UID]*retry{},
	}, nil
}

// HandlePodChange handles pods that were added, updated, deleted or removed. Mirror pods
// are ignored, because they only represent static pods.
func (p *PodManager) HandlePodChange(c podsource.Change) {
	pods := slices.DeleteFunc(slices.Clone(c.Pods), podspec.IsMirror)
	p.loadExpected()
	if c.Op == podsource.Add {
		pods = p.inOrder(pods)
		if p.terminatePredecessors != nil {
			p.terminatePredecessors(pods)
		}
	}
	p.reported = sync.OnceValue(p.reportedByUID)
	defer func() { p.reported = nil }()
	now := time.Now()
	p.pruneRemoved(now)
	for _, pod := range pods {
		p.safely("handle a change", pod, func() { p.changeOne(c, pod, now) })
	}
	p.retryAfter(c.Op, now)
}

// pruneRemoved drops the pods that were removed longer than removedTTL ago, once a minute.
func (p *PodManager) pruneRemoved(now time.Time) {
	if now.Sub(p.lastPrunedAt) < removedTTL/10 {
		return
	}
	p.lastPrunedAt = now
	maps.DeleteFunc(p.removed, func(_ types.UID, at time.Time) bool { return now.Sub(at) > removedTTL })
}

// removedTTL is longer than any package remembers a removed pod.
const removedTTL = 10 * time.Minute

// HandlePodSync requeues a pod. Unknown pods are ignored; housekeeping terminates those
// that should not run.
func (p *PodManager) HandlePodSync(uid types.UID, why podworkers.RequeueReason) {
	if p.pendingResizes[uid] != nil {
		p.retryResizesUpTo(uid, time.Now()) // another pod may have finished
	}
	p.followLeftAlone(uid)
	p.cfg.Workers.Requeue(uid, why)
}

// HandlePodRecreations starts pods that were desired again during their termination, or
// during the removal of their resources, if they are still desired.
func (p *PodManager) HandlePodRecreations(uids []types.UID) {
	now := time.Now()
	var pods []*corev1.Pod
	for _, uid := range uids {
		reserved := p.clearReservation(uid)
		d := p.get(uid)
		if d == nil || d.rejected || d.leftAlone || d.preemption != nil {
			continue
		}
		if reserved {
			p.set(uid, &desiredPod{pod: d.pod})
		} else {
			p.removed[uid] = now // the previous pod of the UID
		}
		pods = append(pods, d.pod)
	}
	for _, pod := range p.inOrder(pods) {
		if h := p.cfg.Hooks.Recreated; h != nil {
			h(pod)
		}
		p.safely("start again", pod, func() { p.start(pod, now) })
	}
}

// AddDesiredUIDs adds the UIDs of all desired pods, including rejected ones, to set and
// returns it. It creates a nil set.
func (p *PodManager) AddDesiredUIDs(set map[types.UID]struct{}) map[types.UID]struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if set == nil {
		set = make(map[types.UID]struct{}, len(p.desired))
	}
	for uid := range p.desired {
		set[uid] = struct{}{}
	}
	return set
}

func (p *PodManager) get(uid types.UID) *desiredPod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.desired[uid]
}

func (p *PodManager) set(uid types.UID, d *desiredPod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d == nil {
		delete(p.desired, uid)
		return
	}
	p.desired[uid] = d
}

func (p *PodManager) remove(uid types.UID, now time.Time) {
	d := p.get(uid)
	if d == nil {
		return
	}
	p.set(uid, nil)
	delete(p.pendingResizes, uid)
	p.dropRetry(uid)
	if d.waitsForCleanup {
		return
	}
	p.activePods.drop(uid)
	p.removed[uid] = now
	p.stopWaiting(uid)
	if d.rejected { // its status is final
		p.cfg.Statuses.Forget(uid)
		return
	}
	p.cfg.Workers.Update(podworkers.Update{Pod: d.pod, Kill: &podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}}, StartTime: now})
}

// change handles a newer version of a pod. A rejected pod stays rejected until it is
// retried.
func (p *PodManager) change(op podsource.Op, pod *corev1.Pod, now time.Time) {
	d := p.get(pod.UID)
	if d == nil {
		p.add(pod, now)
		return
	}
	if d.preemption != nil {
		p.changePreemptor(pod, d, now)
		return
	}
	if d.leftAlone {
		p.changeLeftAlone(pod, now)
		return
	}
	if isInvalid(pod) && !isFinished(pod) && !d.rejected && !d.waitsForCleanup {
		return // the last valid version keeps running
	}
	if !d.rejected && !d.waitsForCleanup {
		pod = p.withAllocation(pod, d, now)
	}
	p.set(pod.UID, &desiredPod{pod: pod, rejected: d.rejected, waitsForCleanup: d.waitsForCleanup})
	if d.waitsForCleanup {
		return
	}
	u := podworkers.Update{Type: podworkers.PodUpdate, Pod: pod, StartTime: now}
	switch {
	case d.rejected && op == podsource.Delete:
		// It is Failed already. The worker does what follows a termination.
		p.set(pod.UID, &desiredPod{pod: pod})
		p.dropRetry(pod.UID)
		u.Pod = p.withRestoredStatus(pod)
	case d.rejected:
		return
	case op == podsource.Reconcile:
		u.Type = podworkers.PodReconcile
	}
	if _, ok := p.activePods.pos[pod.UID]; ok {
		p.putActive(pod)
	}
	p.cfg.Workers.Update(u)
}

// add handles a pod that was not desired until now. If a pod of its UID is terminating,
// it waits for HandlePodRecreations.
func (p *PodManager) add(pod *corev1.Pod, now time.Time) {
	if p.get(pod.UID) != nil {
		p.change(podsource.Update, pod, now)
		return
	}
	delete(p.expected, pod.UID)
	if p.markDesired(pod) || p.cfg.Workers.RequestRecreation(pod.UID) {
		p.logPod("pod waiting for cleanup of an earlier pod of its UID", pod, sourceAttr(pod))
		return
	}
	p.start(pod, now)
}
