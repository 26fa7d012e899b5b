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

// allot returns the pod as it is to run. Where it asks for more than it has, and an
// admitter refuses that, it keeps the resources that it has, with a condition that
// says why; waits is then the pod as it asks to be. Any other change goes through.
func (p *Pods) allot(pod, has *corev1.Pod) (runs, waits *corev1.Pod) {
	if over(pod) {
		if why := pending(&has.Status); why != nil {
			return held(pod, has, why.Reason, why.Message), nil
		}
		return pod, nil
	}
	if !grows(podspec.Requests(has), podspec.Requests(pod)) {
		return pod, nil
	}
	v := p.admit(pod)
	if v.OK {
		return pod, nil
	}
	reason := corev1.PodReasonDeferred
	if v.Infeasible() {
		reason = corev1.PodReasonInfeasible
	}
	return held(pod, has, reason, v.Message), pod
}

// allotted is what a change of a pod comes to, and keeps what has to wait.
func (p *Pods) allotted(pod *corev1.Pod, w *wanted, now time.Time) *corev1.Pod {
	runs, waits := p.allot(pod, w.pod)
	if waits == nil {
		delete(p.waits, pod.UID)
		return runs
	}
	p.waits[pod.UID] = waits
	p.tellHeld(w.pod, runs, now)
	return runs
}

// grows reports whether any of the resources that can be changed is asked for in a
// greater amount.
func grows(from, to corev1.ResourceList) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		a, b := from[name], to[name]
		if b.Cmp(a) > 0 {
			return true
		}
	}
	return false
}

// held is pod with the resources of has and a condition that says that it waits.
func held(pod, has *corev1.Pod, reason, message string) *corev1.Pod {
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
func (p *Pods) adopted(pod *corev1.Pod) (runs, waits *corev1.Pod) {
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
	return held(pod, has, why.Reason, why.Message), pod
}

// tellHeld records that a change of resources is held back, once for each reason.
func (p *Pods) tellHeld(before, runs *corev1.Pod, now time.Time) {
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
func (p *Pods) retryResizes(now time.Time) {
	for _, uid := range slices.Sorted(maps.Keys(p.waits)) {
		p.retryResize(uid, now)
	}
}

func (p *Pods) retryResize(uid types.UID, now time.Time) {
	asked, w := p.waits[uid], p.get(uid)
	if asked == nil || w == nil {
		return
	}
	runs, waits := p.allot(asked, w.pod)
	if was, is := pending(&w.pod.Status), pending(&runs.Status); waits != nil && was != nil && was.Reason == is.Reason {
		return
	}
	p.change(podsource.Update, asked, now)
}
