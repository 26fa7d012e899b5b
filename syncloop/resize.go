package syncloop

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// allocate returns the pod as it is to run. Where it asks for more than it has, and an
// admitter refuses that, it keeps the resources that it has, with a condition that
// says why; waits is then the pod as it asks to be. Any other change goes through.
func (p *PodManager) allocate(pod, has *corev1.Pod) (runs, waits *corev1.Pod) {
	if isFinished(pod) {
		if why := pending(&has.Status); why != nil {
			return isResizeDeferred(pod, has, why.Reason, why.Message), nil
		}
		return pod, nil
	}
	if !needsMoreResources(podspec.Requests(has), podspec.Requests(pod)) {
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
	return isResizeDeferred(pod, has, reason, v.Message), pod
}

// withAllocation is what a change of a pod comes to, and keeps what has to wait.
func (p *PodManager) withAllocation(pod *corev1.Pod, w *desiredPod, now time.Time) *corev1.Pod {
	runs, waits := p.allocate(pod, w.pod)
	if waits == nil {
		delete(p.pendingResizes, pod.UID)
		return runs
	}
	p.pendingResizes[pod.UID] = waits
	p.reportPendingResize(w.pod, runs, now)
	return runs
}

// needsMoreResources reports whether any of the resources that can be changed is asked for in a
// greater amount.
func needsMoreResources(from, to corev1.ResourceList) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		a, b := from[name], to[name]
		if b.Cmp(a) > 0 {
			return true
		}
	}
	return false
}

// isResizeDeferred is pod with the resources of has and a condition that says that it waits.
func isResizeDeferred(pod, has *corev1.Pod, reason, message string) *corev1.Pod {
	out := pod.DeepCopy()
	out.Spec.Resources = has.Spec.Resources.DeepCopy()
	for _, lists := range [][2][]corev1.Container{{out.Spec.InitContainers, has.Spec.InitContainers}, {out.Spec.Containers, has.Spec.Containers}} {
		for i := range lists[0] {
			c := &lists[0][i]
			if j := slices.IndexFunc(lists[1], func(o corev1.Container) bool { return o.Name == c.Name }); j >= 0 {
				c.Resources = *lists[1][j].Resources.DeepCopy()
			}
		}
	}
	out.Status.Conditions = append(out.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
	return out
}

func pending(st *corev1.PodStatus) *corev1.PodCondition {
	i := slices.IndexFunc(st.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue
	})
	if i < 0 {
		return nil
	}
	return &st.Conditions[i]
}

// withoutPending takes out what was told of the pod before and came back to us.
func withoutPending(pod *corev1.Pod) *corev1.Pod {
	if pending(&pod.Status) == nil {
		return pod
	}
	out := *pod
	out.Status.Conditions = slices.DeleteFunc(slices.Clone(pod.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending
	})
	return &out
}

// adopted returns how a pod that runs already is to go on. If a former process held
// a change of its resources back, it is held back until it can be judged beside all
// others.
func (p *PodManager) adopted(pod *corev1.Pod) (runs, waits *corev1.Pod) {
	st, ok := p.cfg.Statuses.Get(pod.UID)
	if !ok {
		return pod, nil
	}
	why := pending(&st)
	if why == nil {
		return pod, nil
	}
	has := pod.DeepCopy()
	has.Spec.Resources = st.Resources.DeepCopy()
	for _, list := range [][]corev1.Container{has.Spec.InitContainers, has.Spec.Containers} {
		for i := range list {
			for _, cs := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
				if cs.Name == list[i].Name && cs.Resources != nil {
					list[i].Resources.Requests, list[i].Resources.Limits = cs.AllocatedResources.DeepCopy(), cs.Resources.Limits.DeepCopy()
				}
			}
		}
	}
	return isResizeDeferred(pod, has, why.Reason, why.Message), pod
}

// reportPendingResize records that a change of resources is held back, once for each reason.
func (p *PodManager) reportPendingResize(before, runs *corev1.Pod, now time.Time) {
	c := pending(&runs.Status)
	if c == nil || p.cfg.Recorder == nil {
		return
	}
	if old := pending(&before.Status); old == nil || old.Reason != c.Reason {
		p.cfg.Recorder.Record(podspec.NewEvent(runs, corev1.EventTypeWarning, "Resize"+c.Reason, c.Message, now))
	}
}

// retryResizes asks again for room for what waits for it, in no order but a steady
// one.
func (p *PodManager) retryResizes(now time.Time) {
	for _, uid := range slices.Sorted(maps.Keys(p.pendingResizes)) {
		p.retryResize(uid, now)
	}
}

func (p *PodManager) retryResize(uid types.UID, now time.Time) {
	asked, w := p.pendingResizes[uid], p.get(uid)
	if asked == nil || w == nil {
		return
	}
	runs, waits := p.allocate(asked, w.pod)
	if was, is := pending(&w.pod.Status), pending(&runs.Status); waits != nil && was != nil && was.Reason == is.Reason {
		return
	}
	p.change(podsource.Update, asked, now)
}
