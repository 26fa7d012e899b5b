package podspec

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Requests returns the effective requests of a pod, as PodRequests of
// k8s.io/component-helpers/resource: the maximum that its containers request at any time, or
// the pod-level requests, plus the overhead. The pod should have been defaulted. The caller
// owns the result.
func Requests(pod *corev1.Pod) corev1.ResourceList {
	return effective(pod, requestsOf, true)
}

// Limits returns the effective limits of a pod, computed like Requests. A resource is left
// out if a container has no limit of it, or a limit of 0, which means none, unless the pod
// has a pod-level limit, which is not 0 either. The caller owns the result.
func Limits(pod *corev1.Pod) corev1.ResourceList {
	total := LimitSum(pod)
	for name := range total {
		if own := podLevel(pod, limitsOf)[name]; own.Sign() <= 0 && unbounded(pod, name) {
			delete(total, name)
		}
	}
	return total
}

// LimitSum returns the limits of a pod like Limits, but counts a container without a limit
// as 0 instead of unlimited. The kubelet evicts a pod whose local storage exceeds this sum.
func LimitSum(pod *corev1.Pod) corev1.ResourceList {
	total := effective(pod, limitsOf, false)
	for name, extra := range pod.Spec.Overhead {
		if q, ok := total[name]; ok {
			q.Add(extra)
			total[name] = q
		}
	}
	return total
}

func requestsOf(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }
func limitsOf(r *corev1.ResourceRequirements) corev1.ResourceList   { return r.Limits }

type picker func(*corev1.ResourceRequirements) corev1.ResourceList

func effective(pod *corev1.Pod, pick picker, overhead bool) corev1.ResourceList {
	total := containersTogether(pod, pick)
	maps.Copy(total, podLevel(pod, pick))
	if overhead {
		addTo(total, pod.Spec.Overhead)
	}
	return total
}

// containersTogether returns the maximum over time: of all regular containers and sidecars
// together, and of each init container together with the sidecars before it.
func containersTogether(pod *corev1.Pod, pick picker) corev1.ResourceList {
	sidecars, peak := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if IsSidecar(c) {
			addTo(sidecars, pick(&c.Resources))
			raiseTo(peak, sidecars)
			continue
		}
		now := copyOf(sidecars)
		addTo(now, pick(&c.Resources))
		raiseTo(peak, now)
	}
	total := sidecars
	for i := range pod.Spec.Containers {
		addTo(total, pick(&pod.Spec.Containers[i].Resources))
	}
	raiseTo(total, peak)
	return total
}

// podLevel returns the pod-level resources.
func podLevel(pod *corev1.Pod, pick picker) corev1.ResourceList {
	if pod.Spec.Resources == nil {
		return nil
	}
	out := corev1.ResourceList{}
	for name, q := range pick(pod.Spec.Resources) {
		if isPodLevel(name) {
			out[name] = q.DeepCopy()
		}
	}
	return out
}

func isPodLevel(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || IsHugePages(name)
}

// unbounded reports whether an init or regular container has no limit of that name.
// Ephemeral containers cannot have limits and do not count.
func unbounded(pod *corev1.Pod, name corev1.ResourceName) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if limit := containers[i].Resources.Limits[name]; limit.Sign() <= 0 {
				return true
			}
		}
	}
	return false
}

func addTo(total, more corev1.ResourceList) {
	for name, q := range more {
		sum := total[name]
		sum.Add(q)
		total[name] = sum
	}
}

func raiseTo(total, other corev1.ResourceList) {
	for name, q := range other {
		if had, ok := total[name]; !ok || q.Cmp(had) > 0 {
			total[name] = q.DeepCopy()
		}
	}
}

func copyOf(list corev1.ResourceList) corev1.ResourceList {
	out := make(corev1.ResourceList, len(list))
	for name, q := range list {
		out[name] = q.DeepCopy()
	}
	return out
}

// QOS returns the quality-of-service class of a pod, by its requests and limits of cpu and
// memory: Guaranteed if all containers have limits that equal their requests, BestEffort if
// none has any, and Burstable otherwise. Pod-level resources decide if there are any. The
// pod should have been defaulted.
func QOS(pod *corev1.Pod) corev1.PodQOSClass {
	var sets []*corev1.ResourceRequirements
	if r := pod.Spec.Resources; r != nil && (len(r.Requests) > 0 || len(r.Limits) > 0) {
		sets = append(sets, r)
	} else {
		for i := range pod.Spec.InitContainers {
			sets = append(sets, &pod.Spec.InitContainers[i].Resources)
		}
		for i := range pod.Spec.Containers {
			sets = append(sets, &pod.Spec.Containers[i].Resources)
		}
	}
	said, guaranteed := false, true
	var requests, limits [2]resource.Quantity // of all together
	for _, set := range sets {
		for i, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := set.Requests[name], set.Limits[name]
			said = said || request.Sign() > 0 || limit.Sign() > 0
			guaranteed = guaranteed && limit.Sign() > 0
			requests[i].Add(request)
			limits[i].Add(limit)
		}
	}
	switch {
	case !said:
		return corev1.PodQOSBestEffort
	case guaranteed && requests[0].Cmp(limits[0]) == 0 && requests[1].Cmp(limits[1]) == 0:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// IsFromClaim reports whether a container has a resource from the claim that the scheduler has made for the
// extended resources of the pod, and not from a device plugin (KEP-5004).
func IsFromClaim(pod *corev1.Pod, container string, name corev1.ResourceName) bool {
	st := pod.Status.ExtendedResourceClaimStatus
	return st != nil && slices.ContainsFunc(st.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == string(name)
	})
}
