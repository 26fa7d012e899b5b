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
)

// Workers take pods through their lives. None of the methods blocks.
type Workers interface {
	Update(u podworkers.Update)
	Requeue(uid types.UID, why podworkers.RequeueReason)
	State(uid types.UID) (podworkers.State, bool)
	// RequestRecreation reports whether a pod of that UID is ending, or has ended and is not
	// forgotten. If so it is remembered that the UID is wanted again.
	RequestRecreation(uid types.UID) bool
}

// Statuses keep what was told of each pod. None of the methods blocks.
type Statuses interface {
	Get(uid types.UID) (corev1.PodStatus, bool)
	// Reject makes the pod Failed.
	Reject(pod *corev1.Pod, reason, message string) corev1.PodStatus
	// Forget lets a pod of that UID begin with a clean slate.
	Forget(uid types.UID)
}

// Admitter says whether a new pod may run beside the others, in no order: those that
// are admitted and not finished, and those that run since before this process and
// whose source still wants them, or has not spoken yet. It is pure: it asks nobody
// and does not block.
type Admitter interface {
	Admit(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult
}

// Recorder takes Kubernetes events. It does not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// PodManagerConfig describes Pods.
type PodManagerConfig struct {
	Workers   Workers    // required
	Statuses  Statuses   // required
	Admitters []Admitter // asked in this order until one refuses; default: all pods may run

	// IsRunning reports, from memory, that a container or sandbox of the pod lives in the
	// runtime, or may do so since nobody has inspected it yet. A pod that is new to the
	// loop is then adopted and not admitted. Default: none does.
	IsRunning func(uid types.UID) bool
	// Expected returns the pods that the loop may have yet to hear of: those that a
	// source wants, and those of a former process whose source has not spoken. Those
	// that are Alive take room before they are added. Default: there are none.
	Expected func() []*corev1.Pod

	// UnderPressure reports, from memory, that the node is short of anything for which it
	// evicts: static pods that were evicted are not started again meanwhile. Default: it
	// never is.
	UnderPressure func() bool

	Recorder Recorder     // default: events are dropped
	Logger   *slog.Logger // default: discard
	Hooks    PodManagerHooks
}

// PodManagerHooks are called as pods are taken in. Any may be nil. They must not block.
type PodManagerHooks struct {
	Admitted func(pod *corev1.Pod)
	Adopted  func(pod *corev1.Pod)
	Rejected func(pod *corev1.Pod, reason, message string)
}

func (c *PodManagerConfig) fill() error {
	var errs []error
	if c.Workers == nil {
		errs = append(errs, errors.New("syncloop: nil Workers"))
	}
	if c.Statuses == nil {
		errs = append(errs, errors.New("syncloop: nil Statuses"))
	}
	if c.IsRunning == nil {
		c.IsRunning = func(types.UID) bool { return false }
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
	c.Hooks = safe.Hooks(c.Logger, c.Hooks)
	c.Recorder = safe.Events(c.Logger, c.Recorder)
	return errors.Join(errs...)
}

// desiredPod is a pod that a source wants to run here.
type desiredPod struct {
	pod             *corev1.Pod
	rejected        bool
	waitsForCleanup bool // it waits for Again: nobody has heard of it yet
}

// PodManager is a Handler: it knows the pods that are wanted, admits new ones and hands
// everything on to the workers. Wanted may be called from any goroutine, the other
// methods from one at a time.
type PodManager struct {
	cfg PodManagerConfig

	// activePods are the pods that an admitter is told of. It may hold some that have
	// ended since: what counts is made out anew before a pod is refused.
	activePods podSet
	// expected are those of others that were not added yet; nil before the first change.
	expected map[types.UID]struct{}
	// removed are pods that were removed, and when, for as long as something of
	// them may still be remembered elsewhere. One that comes back is a new pod.
	removed      map[types.UID]time.Time
	lastPrunedAt time.Time // when removed was last looked through
	// pendingResizes are pods as they ask to be, of which wanted has what there is room for.
	pendingResizes map[types.UID]*corev1.Pod

	mu           sync.Mutex                // guards what follows
	desired      map[types.UID]*desiredPod // only the loop writes it
	reservedUIDs map[types.UID]struct{}    // pods that are not to begin now; see hold
	retries      map[types.UID]*retry      // only the loop writes it
}

// NewPodManager returns Pods.
func NewPodManager(cfg PodManagerConfig) (*PodManager, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &PodManager{cfg: cfg, removed: map[types.UID]time.Time{}, pendingResizes: map[types.UID]*corev1.Pod{}, desired: map[types.UID]*desiredPod{}, reservedUIDs: map[types.UID]struct{}{}, retries: map[types.UID]*retry{}}, nil
}

// HandlePodChange takes pods that were added, changed or removed. Mirror pods stand for
// others and are nobody's work.
func (p *PodManager) HandlePodChange(c podsource.Change) {
	pods := slices.DeleteFunc(slices.Clone(c.Pods), podspec.IsMirror)
	p.expect()
	if c.Op == podsource.Add {
		pods = p.inOrder(pods)
	}
	now := time.Now()
	p.forgetRemoved(now)
	for _, pod := range pods {
		pod = withoutPending(pod)
		switch c.Op {
		case podsource.Remove:
			p.remove(pod.UID, now)
		case podsource.Add:
			p.add(pod, now)
		default:
			p.change(c.Op, pod, now)
		}
	}
	p.retryResizes(now)
	if c.Op != podsource.Add && c.Op != podsource.Reconcile {
		p.retryAllRejected(now) // others may ask for less, or it may itself
	}
}

// forgetRemoved drops what was removed so long ago that nobody remembers it.
func (p *PodManager) forgetRemoved(now time.Time) {
	if now.Sub(p.lastPrunedAt) < removedAge {
		return
	}
	p.lastPrunedAt = now
	maps.DeleteFunc(p.removed, func(_ types.UID, at time.Time) bool { return now.Sub(at) > removedAge })
}

// removedAge is longer than anybody remembers a pod that is gone.
const removedAge = 10 * time.Minute

// HandlePodSync passes on that a pod has to be looked at. Of one that no worker knows,
// nothing comes: if it should not be there, housekeeping finds it.
func (p *PodManager) HandlePodSync(uid types.UID, why podworkers.RequeueReason) {
	if p.pendingResizes[uid] != nil {
		p.retryResize(uid, time.Now()) // another one may have ended
	}
	p.cfg.Workers.Requeue(uid, why)
}

// HandlePodRecreations adds pods anew that came back while they ended, or while what was left of
// them was removed, if they are still wanted.
func (p *PodManager) HandlePodRecreations(uids []types.UID) {
	now := time.Now()
	var pods []*corev1.Pod
	for _, uid := range uids {
		held := p.clearReservation(uid)
		w := p.get(uid)
		if w == nil || w.rejected {
			continue
		}
		if held {
			p.set(uid, &desiredPod{pod: w.pod})
		} else {
			p.removed[uid] = now // as what it was
		}
		pods = append(pods, w.pod)
	}
	for _, pod := range p.inOrder(pods) {
		p.begin(pod, now)
	}
}

// AddDesiredUIDs adds the UIDs of all pods that are wanted here, refused ones too, to set,
// which it makes if it is nil, and returns it.
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

func (p *PodManager) set(uid types.UID, w *desiredPod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w == nil {
		delete(p.desired, uid)
		return
	}
	p.desired[uid] = w
}

func (p *PodManager) remove(uid types.UID, now time.Time) {
	w := p.get(uid)
	if w == nil {
		return
	}
	p.set(uid, nil)
	delete(p.pendingResizes, uid)
	p.dropRetry(uid)
	if w.waitsForCleanup {
		return
	}
	p.activePods.drop(uid)
	p.removed[uid] = now
	if w.rejected { // no worker ever had it
		p.cfg.Statuses.Forget(uid)
		return
	}
	p.cfg.Workers.Update(podworkers.Update{Pod: w.pod, Kill: &podworkers.KillOptions{Deleted: true}, StartTime: now})
}

// change takes a newer version of a pod. One that was refused stays refused until it
// is tried again.
func (p *PodManager) change(op podsource.Op, pod *corev1.Pod, now time.Time) {
	w := p.get(pod.UID)
	if w == nil {
		p.add(pod, now)
		return
	}
	if !w.rejected && !w.waitsForCleanup {
		pod = p.withAllocation(pod, w, now)
	}
	p.set(pod.UID, &desiredPod{pod: pod, rejected: w.rejected, waitsForCleanup: w.waitsForCleanup})
	if w.waitsForCleanup {
		return
	}
	u := podworkers.Update{Type: podworkers.PodUpdate, Pod: pod, StartTime: now}
	switch {
	case w.rejected && op == podsource.Delete:
		// It has ended as Failed. What is left to do is what follows an end.
		p.set(pod.UID, &desiredPod{pod: pod})
		p.dropRetry(pod.UID)
		u.Pod = p.withRestoredStatus(pod)
	case w.rejected:
		return
	case op == podsource.Reconcile:
		u.Type = podworkers.PodReconcile
	}
	if _, ok := p.activePods.pos[pod.UID]; ok {
		p.activePods.put(pod)
	}
	p.cfg.Workers.Update(u)
}

// add takes a pod that was not wanted until now. If its UID was and is ending, it
// has to wait: see Again.
func (p *PodManager) add(pod *corev1.Pod, now time.Time) {
	if p.get(pod.UID) != nil {
		p.change(podsource.Update, pod, now)
		return
	}
	delete(p.expected, pod.UID)
	if !p.markDesired(pod) && !p.cfg.Workers.RequestRecreation(pod.UID) {
		p.begin(pod, now)
	}
}

// begin gives a pod to a worker: it is done for good, or runs already, or is
// admitted; or it is refused.
func (p *PodManager) begin(pod *corev1.Pod, now time.Time) {
	u := podworkers.Update{Type: podworkers.PodCreate, Pod: pod, StartTime: now}
	_, back := p.removed[pod.UID]
	rejected := !back && p.restoreRetry(pod, now)
	switch {
	case back:
		delete(p.removed, pod.UID)
		p.activePods.drop(pod.UID)
		p.cfg.Statuses.Forget(pod.UID)
	case !rejected:
		u.Pod, u.Kill = p.withRestoredStatus(pod), p.wasEvicted(pod.UID)
	}
	switch {
	case isFinished(u.Pod):
		u.Kill = nil
		p.cfg.Workers.Update(u)
		return
	case u.Kill != nil:
	case !back && p.cfg.IsRunning(pod.UID):
		if rejected {
			p.cfg.Statuses.Forget(pod.UID)
		}
		if h := p.cfg.Hooks.Adopted; h != nil {
			h(pod)
		}
		var waits *corev1.Pod
		if pod, waits = p.adopted(pod); waits != nil {
			p.pendingResizes[pod.UID], u.Pod = waits, pod
			p.set(pod.UID, &desiredPod{pod: pod})
		}
	default:
		if v := p.admit(pod); !v.Admitted {
			p.reject(pod, v, now)
			return
		}
		if rejected {
			p.cfg.Statuses.Forget(pod.UID)
		}
		if h := p.cfg.Hooks.Admitted; h != nil {
			h(pod)
		}
	}
	p.activePods.put(pod)
	p.cfg.Workers.Update(u)
}

// isFinished reports whether the pod is not to run, whatever room there is.
func isFinished(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil || terminal(pod.Status) }

func terminal(st corev1.PodStatus) bool {
	return st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed
}

// wasEvicted returns the eviction that a former process has told of and not come to
// the end of. What has been told has to come true: the pod is not started again.
func (p *PodManager) wasEvicted(uid types.UID) *podworkers.KillOptions {
	st, _ := p.cfg.Statuses.Get(uid)
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet {
			return &podworkers.KillOptions{Reason: podspec.ReasonEvicted, Message: c.Message, Evicted: true}
		}
	}
	return nil
}

// withRestoredStatus gives the pod the status that was told of it before, if that is a
// terminal one: its source may not know, and it must not run twice.
func (p *PodManager) withRestoredStatus(pod *corev1.Pod) *corev1.Pod {
	st, _ := p.cfg.Statuses.Get(pod.UID)
	if !terminal(st) {
		return pod
	}
	with := *pod
	with.Status = st
	return &with
}
