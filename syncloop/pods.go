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
	Wake(uid types.UID, why podworkers.Wake)
	State(uid types.UID) (podworkers.State, bool)
	// ComesBack reports whether a pod of that UID is ending, or has ended and is not
	// forgotten. If so it is remembered that the UID is wanted again.
	ComesBack(uid types.UID) bool
}

// Statuses keep what was told of each pod. None of the methods blocks.
type Statuses interface {
	Get(uid types.UID) (corev1.PodStatus, bool)
	// Refuse makes the pod Failed.
	Refuse(pod *corev1.Pod, reason, message string) corev1.PodStatus
	// Forget lets a pod of that UID begin with a clean slate.
	Forget(uid types.UID)
}

// Admitter says whether a new pod may run beside the others, in no order: those that
// are admitted and not finished, and those that run since before this process and
// whose source still wants them, or has not spoken yet. It is pure: it asks nobody
// and does not block.
type Admitter interface {
	Admit(pod *corev1.Pod, others []*corev1.Pod) podspec.Verdict
}

// Recorder takes Kubernetes events. It does not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// PodsConfig describes Pods.
type PodsConfig struct {
	Workers  Workers    // required
	Statuses Statuses   // required
	Admit    []Admitter // asked in this order until one refuses; default: all pods may run

	// Alive reports, from memory, that a container or sandbox of the pod lives in the
	// runtime, or may do so since nobody has inspected it yet. A pod that is new to the
	// loop is then adopted and not admitted. Default: none does.
	Alive func(uid types.UID) bool
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
	Hooks    PodsHooks
}

// PodsHooks are called as pods are taken in. Any may be nil. They must not block.
type PodsHooks struct {
	Admitted func(pod *corev1.Pod)
	Adopted  func(pod *corev1.Pod)
	Refused  func(pod *corev1.Pod, reason, message string)
}

func (c *PodsConfig) fill() error {
	var errs []error
	if c.Workers == nil {
		errs = append(errs, errors.New("syncloop: nil Workers"))
	}
	if c.Statuses == nil {
		errs = append(errs, errors.New("syncloop: nil Statuses"))
	}
	if c.Alive == nil {
		c.Alive = func(types.UID) bool { return false }
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

// wanted is a pod that a source wants to run here.
type wanted struct {
	pod     *corev1.Pod
	refused bool
	held    bool // it waits for Again: nobody has heard of it yet
}

// Pods is a Handler: it knows the pods that are wanted, admits new ones and hands
// everything on to the workers. Wanted may be called from any goroutine, the other
// methods from one at a time.
type Pods struct {
	cfg PodsConfig

	// others are the pods that an admitter is told of. It may hold some that have
	// ended since: what counts is made out anew before a pod is refused.
	others roster
	// expected are those of others that were not added yet; nil before the first change.
	expected map[types.UID]struct{}
	// removed are pods that were removed, and when, for as long as something of
	// them may still be remembered elsewhere. One that comes back is a new pod.
	removed map[types.UID]time.Time
	looked  time.Time // when removed was last looked through
	// waits are pods as they ask to be, of which wanted has what there is room for.
	waits map[types.UID]*corev1.Pod

	mu      sync.Mutex             // guards what follows
	wanted  map[types.UID]*wanted  // only the loop writes it
	holds   map[types.UID]struct{} // pods that are not to begin now; see hold
	retries map[types.UID]*retry   // only the loop writes it
}

// NewPods returns Pods.
func NewPods(cfg PodsConfig) (*Pods, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Pods{cfg: cfg, removed: map[types.UID]time.Time{}, waits: map[types.UID]*corev1.Pod{}, wanted: map[types.UID]*wanted{}, holds: map[types.UID]struct{}{}, retries: map[types.UID]*retry{}}, nil
}

// Change takes pods that were added, changed or removed. Mirror pods stand for
// others and are nobody's work.
func (p *Pods) Change(c podsource.Change) {
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
func (p *Pods) forgetRemoved(now time.Time) {
	if now.Sub(p.looked) < removedAge {
		return
	}
	p.looked = now
	maps.DeleteFunc(p.removed, func(_ types.UID, at time.Time) bool { return now.Sub(at) > removedAge })
}

// removedAge is longer than anybody remembers a pod that is gone.
const removedAge = 10 * time.Minute

// Wake passes on that a pod has to be looked at. Of one that no worker knows,
// nothing comes: if it should not be there, housekeeping finds it.
func (p *Pods) Wake(uid types.UID, why podworkers.Wake) {
	if p.waits[uid] != nil {
		p.retryResize(uid, time.Now()) // another one may have ended
	}
	p.cfg.Workers.Wake(uid, why)
}

// Again adds pods anew that came back while they ended, or while what was left of
// them was removed, if they are still wanted.
func (p *Pods) Again(uids []types.UID) {
	now := time.Now()
	var pods []*corev1.Pod
	for _, uid := range uids {
		held := p.release(uid)
		w := p.get(uid)
		if w == nil || w.refused {
			continue
		}
		if held {
			p.set(uid, &wanted{pod: w.pod})
		} else {
			p.removed[uid] = now // as what it was
		}
		pods = append(pods, w.pod)
	}
	for _, pod := range p.inOrder(pods) {
		p.begin(pod, now)
	}
}

// Wanted adds the UIDs of all pods that are wanted here, refused ones too, to set,
// which it makes if it is nil, and returns it.
func (p *Pods) Wanted(set map[types.UID]struct{}) map[types.UID]struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if set == nil {
		set = make(map[types.UID]struct{}, len(p.wanted))
	}
	for uid := range p.wanted {
		set[uid] = struct{}{}
	}
	return set
}

func (p *Pods) get(uid types.UID) *wanted {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted[uid]
}

func (p *Pods) set(uid types.UID, w *wanted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w == nil {
		delete(p.wanted, uid)
		return
	}
	p.wanted[uid] = w
}

func (p *Pods) remove(uid types.UID, now time.Time) {
	w := p.get(uid)
	if w == nil {
		return
	}
	p.set(uid, nil)
	delete(p.waits, uid)
	p.dropRetry(uid)
	if w.held {
		return
	}
	p.others.drop(uid)
	p.removed[uid] = now
	if w.refused { // no worker ever had it
		p.cfg.Statuses.Forget(uid)
		return
	}
	p.cfg.Workers.Update(podworkers.Update{Pod: w.pod, Kill: &podworkers.Kill{Deleted: true}, At: now})
}

// change takes a newer version of a pod. One that was refused stays refused until it
// is tried again.
func (p *Pods) change(op podsource.Op, pod *corev1.Pod, now time.Time) {
	w := p.get(pod.UID)
	if w == nil {
		p.add(pod, now)
		return
	}
	if !w.refused && !w.held {
		pod = p.allotted(pod, w, now)
	}
	p.set(pod.UID, &wanted{pod: pod, refused: w.refused, held: w.held})
	if w.held {
		return
	}
	u := podworkers.Update{Op: podworkers.Change, Pod: pod, At: now}
	switch {
	case w.refused && op == podsource.Delete:
		// It has ended as Failed. What is left to do is what follows an end.
		p.set(pod.UID, &wanted{pod: pod})
		p.dropRetry(pod.UID)
		u.Pod = p.withFormer(pod)
	case w.refused:
		return
	case op == podsource.Reconcile:
		u.Op = podworkers.Reconcile
	}
	if _, ok := p.others.pos[pod.UID]; ok {
		p.others.put(pod)
	}
	p.cfg.Workers.Update(u)
}

// add takes a pod that was not wanted until now. If its UID was and is ending, it
// has to wait: see Again.
func (p *Pods) add(pod *corev1.Pod, now time.Time) {
	if p.get(pod.UID) != nil {
		p.change(podsource.Update, pod, now)
		return
	}
	delete(p.expected, pod.UID)
	if !p.take(pod) && !p.cfg.Workers.ComesBack(pod.UID) {
		p.begin(pod, now)
	}
}

// begin gives a pod to a worker: it is done for good, or runs already, or is
// admitted; or it is refused.
func (p *Pods) begin(pod *corev1.Pod, now time.Time) {
	u := podworkers.Update{Op: podworkers.Create, Pod: pod, At: now}
	_, back := p.removed[pod.UID]
	rejected := !back && p.restoreRetry(pod, now)
	switch {
	case back:
		delete(p.removed, pod.UID)
		p.others.drop(pod.UID)
		p.cfg.Statuses.Forget(pod.UID)
	case !rejected:
		u.Pod, u.Kill = p.withFormer(pod), p.evicted(pod.UID)
	}
	switch {
	case over(u.Pod):
		u.Kill = nil
		p.cfg.Workers.Update(u)
		return
	case u.Kill != nil:
	case !back && p.cfg.Alive(pod.UID):
		if rejected {
			p.cfg.Statuses.Forget(pod.UID)
		}
		if h := p.cfg.Hooks.Adopted; h != nil {
			h(pod)
		}
		var waits *corev1.Pod
		if pod, waits = p.adopted(pod); waits != nil {
			p.waits[pod.UID], u.Pod = waits, pod
			p.set(pod.UID, &wanted{pod: pod})
		}
	default:
		if v := p.admit(pod); !v.OK {
			p.refuse(pod, v, now)
			return
		}
		if rejected {
			p.cfg.Statuses.Forget(pod.UID)
		}
		if h := p.cfg.Hooks.Admitted; h != nil {
			h(pod)
		}
	}
	p.others.put(pod)
	p.cfg.Workers.Update(u)
}

// over reports whether the pod is not to run, whatever room there is.
func over(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil || terminal(pod.Status) }

func terminal(st corev1.PodStatus) bool {
	return st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed
}

// evicted returns the eviction that a former process has told of and not come to
// the end of. What has been told has to come true: the pod is not started again.
func (p *Pods) evicted(uid types.UID) *podworkers.Kill {
	st, _ := p.cfg.Statuses.Get(uid)
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet {
			return &podworkers.Kill{Reason: podspec.ReasonEvicted, Message: c.Message, Evicted: true}
		}
	}
	return nil
}

// withFormer gives the pod the status that was told of it before, if that is a
// terminal one: its source may not know, and it must not run twice.
func (p *Pods) withFormer(pod *corev1.Pod) *corev1.Pod {
	st, _ := p.cfg.Statuses.Get(pod.UID)
	if !terminal(st) {
		return pod
	}
	with := *pod
	with.Status = st
	return &with
}
