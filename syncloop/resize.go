package syncloop

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// resizeRetryPeriod is the time between attempts of deferred resizes without a reason.
const resizeRetryPeriod = time.Minute

// allocate returns the pod with the resources that it gets. If it requests more than
// previous and an admitter rejects that, it keeps those of previous, with a condition
// that gives the reason; deferred is then the pod as requested. Other changes are
// applied.
func (p *PodManager) allocate(pod, previous *corev1.Pod) (allocated, deferred *corev1.Pod) {
	if isFinished(pod) {
		if c := pendingCondition(&previous.Status); c != nil {
			return withResourcesOf(pod, previous, c.Reason, c.Message), nil
		}
		return pod, nil
	}
	if !needsMoreResources(podspec.Requests(previous), podspec.Requests(pod)) {
		return pod, nil
	}
	v := p.admit(pod)
	if v.Admitted {
		return pod, nil
	}
	reason := corev1.PodReasonDeferred
	if v.Infeasible() {
		reason = corev1.PodReasonInfeasible
	}
	return withResourcesOf(pod, previous, reason, v.Message), pod
}

// withAllocation returns the changed pod with the resources that it gets, and stores a
// resize that is deferred.
func (p *PodManager) withAllocation(pod *corev1.Pod, d *desiredPod, now time.Time) *corev1.Pod {
	allocated, deferred := p.allocate(pod, d.pod)
	if deferred == nil {
		delete(p.pendingResizes, pod.UID)
		return allocated
	}
	p.pendingResizes[pod.UID] = deferred
	p.reportPendingResize(d.pod, allocated, now)
	return allocated
}

// resizable returns the resources that can be resized.
func resizable() [2]corev1.ResourceName {
	return [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
}

// needsMoreResources reports whether more is requested of any resource that can be
// resized.
func needsMoreResources(from, to corev1.ResourceList) bool {
	for _, name := range resizable() {
		a, b := from[name], to[name]
		if b.Cmp(a) > 0 {
			return true
		}
	}
	return false
}

// withResourcesOf returns pod with the resources of previous and the condition that its
// resize is pending.
func withResourcesOf(pod, previous *corev1.Pod, reason, message string) *corev1.Pod {
	out := keepResources(pod, previous)
	out.Status.Conditions = append(out.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
	return out
}

// keepResources returns pod with the resources of previous.
func keepResources(pod, previous *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.Spec.Resources = previous.Spec.Resources.DeepCopy()
	for _, lists := range [][2][]corev1.Container{{out.Spec.InitContainers, previous.Spec.InitContainers}, {out.Spec.Containers, previous.Spec.Containers}} {
		for i := range lists[0] {
			c := &lists[0][i]
			if j := slices.IndexFunc(lists[1], func(o corev1.Container) bool { return o.Name == c.Name }); j >= 0 {
				c.Resources = *lists[1][j].Resources.DeepCopy()
			}
		}
	}
	return out
}

func pendingCondition(st *corev1.PodStatus) *corev1.PodCondition {
	return podspec.TrueCondition(st, corev1.PodResizePending)
}

// withoutPending returns pod without the condition of an earlier status of this agent
// that a source has sent back.
func withoutPending(pod *corev1.Pod) *corev1.Pod {
	if pendingCondition(&pod.Status) == nil {
		return pod
	}
	out := *pod
	out.Status.Conditions = slices.DeleteFunc(slices.Clone(pod.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending
	})
	return &out
}

// restoreAllocation returns a pod that a previous process has started with the resources that
// it gets, also if it does not run any more, after a boot for example. A resize that that
// process has deferred stays deferred until all pods are known, and one to more resources,
// made while no process ran, waits until then to be admitted.
func (p *PodManager) restoreAllocation(pod *corev1.Pod) (allocated, deferred *corev1.Pod) {
	st, ok := p.cfg.Statuses.Get(pod.UID)
	if !ok {
		return pod, nil
	}
	c := pendingCondition(&st)
	if c == nil && (len(st.AllocatedResources) == 0 || !needsMoreResources(st.AllocatedResources, podspec.Requests(pod))) {
		return pod, nil
	}
	previous := p.lastReported(pod.UID)
	if previous == nil {
		previous = withAllocatedResources(pod, &st)
	}
	if c == nil {
		return keepResources(pod, previous), pod
	}
	return withResourcesOf(pod, previous, c.Reason, c.Message), pod
}

// withAllocatedResources returns the pod with the resources that its status reports as
// allocated. Those that it does not report are kept, and limits are those that containers had.
func withAllocatedResources(pod *corev1.Pod, st *corev1.PodStatus) *corev1.Pod {
	out := pod.DeepCopy()
	out.Spec.Resources = allocatedPodLevel(out, st)
	eachReported(out, st, func(c *corev1.Container, cs *corev1.ContainerStatus) {
		c.Resources.Requests, c.Resources.Limits = cs.AllocatedResources.DeepCopy(), cs.Resources.Limits.DeepCopy()
	})
	return out
}

// eachReported calls f with each container of a pod whose resources its status reports.
func eachReported(pod *corev1.Pod, st *corev1.PodStatus, f func(c *corev1.Container, cs *corev1.ContainerStatus)) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for cs := range podspec.ContainerStatuses(st) {
				if cs.Name == list[i].Name && cs.Resources != nil {
					f(&list[i], cs)
				}
			}
		}
	}
}

// allocatedPodLevel returns the pod-level resources of a pod with the amounts that its status
// reports as allocated. The status reports those of the whole pod, overhead and containers
// included: the overhead is none of the spec's, and what the spec leaves to the containers is
// no amount of the pod.
func allocatedPodLevel(pod *corev1.Pod, st *corev1.PodStatus) *corev1.ResourceRequirements {
	if pod.Spec.Resources == nil || st.Resources == nil && len(st.AllocatedResources) > 0 {
		return nil // such as a pod that gets its first pod-level resources
	}
	out := pod.Spec.Resources.DeepCopy()
	if st.Resources == nil {
		return out
	}
	for _, lists := range [][2]corev1.ResourceList{{out.Requests, st.Resources.Requests}, {out.Limits, st.Resources.Limits}} {
		for name := range lists[0] {
			q, ok := lists[1][name]
			if !ok {
				delete(lists[0], name)
				continue
			}
			q = q.DeepCopy()
			q.Sub(pod.Spec.Overhead[name])
			lists[0][name] = q
		}
	}
	return out
}

// reportPendingResize logs and emits that a resize is deferred, once per reason and version of
// the spec.
func (p *PodManager) reportPendingResize(previous, allocated *corev1.Pod, now time.Time) {
	c := pendingCondition(&allocated.Status)
	if before := pendingCondition(&previous.Status); before != nil && before.Reason == c.Reason && previous.Generation == allocated.Generation {
		return
	}
	p.logPod("pod resize deferred", allocated, slog.String("reason", c.Reason), slog.String("message", c.Message))
	if p.cfg.Recorder != nil {
		p.cfg.Recorder.Record(podspec.NewEvent(allocated, corev1.EventTypeWarning, "Resize"+c.Reason, c.Message, now))
	}
}

// retryResizes retries all deferred resizes.
func (p *PodManager) retryResizes(now time.Time) {
	p.resizesRetriedAt = now
	for _, uid := range p.resizeOrder(now) {
		p.retryResize(uid, now)
	}
}

// retryResizesUpTo retries the deferred resize of a pod, after those that come before it.
func (p *PodManager) retryResizesUpTo(last types.UID, now time.Time) {
	for _, uid := range p.resizeOrder(now) {
		p.retryResize(uid, now)
		if uid == last {
			return
		}
	}
}

// retryResizesBefore retries the deferred resizes that come before that of a changed pod, so that it
// does not get what has become free for them.
func (p *PodManager) retryResizesBefore(pod *corev1.Pod, now time.Time) {
	d := p.get(pod.UID)
	if len(p.pendingResizes) == 0 || d == nil || !needsMoreResources(podspec.Requests(d.pod), podspec.Requests(pod)) {
		return
	}
	previous := p.pendingResizes[pod.UID]
	p.pendingResizes[pod.UID] = pod
	order := p.resizeOrder(now)
	if p.pendingResizes[pod.UID] = previous; previous == nil {
		delete(p.pendingResizes, pod.UID)
	}
	for _, uid := range order[:slices.Index(order, pod.UID)] {
		p.retryResize(uid, now)
	}
}

// resizeOrder returns the pods with deferred resizes in the order in which they get what becomes
// free, which is the kubelet's: by priority, Guaranteed pods before others, and the longest deferred
// first.
func (p *PodManager) resizeOrder(now time.Time) []types.UID {
	uids := slices.Sorted(maps.Keys(p.pendingResizes))
	if len(uids) < 2 {
		return uids
	}
	since := make(map[types.UID]time.Time, len(uids))
	for _, uid := range uids {
		since[uid] = now
		st, _ := p.cfg.Statuses.Get(uid)
		if c := pendingCondition(&st); c != nil {
			since[uid] = c.LastTransitionTime.Time
		}
	}
	later := func(pod *corev1.Pod) int {
		if podspec.QOS(pod) == corev1.PodQOSGuaranteed {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(uids, func(a, b types.UID) int {
		x, y := p.pendingResizes[a], p.pendingResizes[b]
		return cmp.Or(cmp.Compare(podspec.Priority(y), podspec.Priority(x)), cmp.Compare(later(x), later(y)), since[a].Compare(since[b]))
	})
	return uids
}

func (p *PodManager) retryResize(uid types.UID, now time.Time) {
	requested, d := p.pendingResizes[uid], p.get(uid)
	if d == nil {
		return
	}
	allocated, deferred := p.allocate(requested, d.pod)
	if before, c := pendingCondition(&d.pod.Status), pendingCondition(&allocated.Status); deferred != nil && before != nil && before.Reason == c.Reason &&
		(before.Message == c.Message || c.Reason == corev1.PodReasonInfeasible) { // what others use does not matter then
		return
	}
	p.change(podsource.Update, requested, now)
}
