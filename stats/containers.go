package stats

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// container completes what the runtime reports of a running container.
func (p *Provider) container(pod *corev1.Pod, c runtime.ContainerUsage) runtime.ContainerUsage {
	if needsRate(&c) {
		c.CPU = p.rate(c.ID, c.CPU)
	}
	// containerd reports 0 bytes as available in a container without a limit.
	if c.Memory.Capacity == c.Memory.WorkingSet && !hasMemoryLimit(pod, c.Name) {
		c.Memory.Capacity = 0
	}
	return c
}

// oneOfEachName has one container of each name of a pod run. A runtime that reports figures of exited containers, too, seems to have
// several: they would be the same series, without which no others are scraped either.
func oneOfEachName(containers []runtime.ContainerUsage) {
	for i := range containers {
		c := &containers[i]
		for j := range containers[:i] {
			if other := &containers[j]; c.Running && other.Running && c.Name == other.Name {
				replaced := runsRather(c, other)
				c.Running, other.Running = replaced, !replaced
			}
		}
	}
}

// runsRather reports whether a container runs rather than another one: an exited one uses no memory, or is not measured any more.
func runsRather(c, other *runtime.ContainerUsage) bool {
	if uses := c.Memory.WorkingSet > 0; uses != (other.Memory.WorkingSet > 0) {
		return uses
	}
	return c.CPU.At.After(other.CPU.At)
}

// needsRate reports whether the runtime leaves the rate of a container to its callers.
func needsRate(c *runtime.ContainerUsage) bool {
	return c.ID != "" && !c.CPU.HasRate && !c.CPU.At.IsZero()
}

// hasMemoryLimit reports whether a container has a limit in the spec of its pod.
func hasMemoryLimit(pod *corev1.Pod, name string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return !list[i].Resources.Limits.Memory().IsZero()
			}
		}
	}
	return false
}

// mayHaveMemoryLimit reports whether the cgroup of a pod can have a limit: that of the pod, or
// the sum of those of all its containers.
func mayHaveMemoryLimit(pod *corev1.Pod) bool {
	if r := pod.Spec.Resources; r != nil && !r.Limits.Memory().IsZero() {
		return true
	}
	return len(pod.Spec.Containers) > 0 && !pod.Spec.Containers[0].Resources.Limits.Memory().IsZero()
}
