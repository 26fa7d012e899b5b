package syncloop

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// A pod that is given less keeps what it had until its containers are resized, which can take long: a memory limit is
// not lowered below what is in use. Meanwhile no other pod gets it, as with a kubelet and a scheduler.

// putActive makes a pod active, with what it still has if that is more than it requests.
func (p *PodManager) putActive(pod *corev1.Pod) {
	surplus := p.surplus(pod)
	if len(surplus) == 0 {
		delete(p.shrinking, pod.UID)
		p.activePods.put(pod)
		return
	}
	p.shrinking[pod.UID] = struct{}{}
	counted := *pod
	counted.Spec.Overhead = maps.Clone(pod.Spec.Overhead)
	if counted.Spec.Overhead == nil {
		counted.Spec.Overhead = corev1.ResourceList{}
	}
	for name, q := range surplus {
		q.Add(pod.Spec.Overhead[name])
		counted.Spec.Overhead[name] = q
	}
	p.activePods.put(&counted)
}

// updateShrinking counts the pods that have more than they request as what they have now. It reports whether any of
// them has less than before.
func (p *PodManager) updateShrinking() (freed bool) {
	for uid := range p.shrinking {
		d := p.get(uid)
		i, active := p.activePods.pos[uid]
		if d == nil || !active {
			delete(p.shrinking, uid)
			continue
		}
		before := podspec.Requests(p.activePods.pods[i])
		p.putActive(d.pod)
		freed = freed || needsMoreResources(podspec.Requests(p.activePods.pods[i]), before)
	}
	return freed
}

// surplus returns how much more a pod has, by its last status, than it requests.
func (p *PodManager) surplus(pod *corev1.Pod) corev1.ResourceList {
	st, ok := p.cfg.Statuses.Get(pod.UID)
	if !ok {
		return nil
	}
	requested, given := podspec.Requests(pod), podspec.Requests(withActualRequests(pod, &st))
	surplus := corev1.ResourceList{}
	for _, name := range resizable() {
		has, allocated := given[name], st.AllocatedResources[name]
		if allocated.Cmp(has) > 0 { // the containers of a pod with pod-level resources do not tell
			has = allocated
		}
		if more := has.DeepCopy(); more.Cmp(requested[name]) > 0 {
			more.Sub(requested[name])
			surplus[name] = more
		}
	}
	return surplus
}

// withActualRequests returns a pod with the requests that its running containers have by its status.
func withActualRequests(pod *corev1.Pod, st *corev1.PodStatus) *corev1.Pod {
	out := *pod
	out.Spec.InitContainers, out.Spec.Containers = slices.Clone(pod.Spec.InitContainers), slices.Clone(pod.Spec.Containers)
	eachReported(&out, st, func(c *corev1.Container, cs *corev1.ContainerStatus) {
		if cs.State.Running != nil {
			c.Resources.Requests = cs.Resources.Requests
		}
	})
	return &out
}
