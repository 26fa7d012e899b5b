package podsource

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// sameForStart reports whether a start from one Set is as good as from the other: they differ in versions and
// statuses alone, and these in nothing but the course of pods. How a pod went on is in the runtime, and in what the
// node keeps itself.
func sameForStart(a, b *Set) bool {
	return slices.EqualFunc(a.Pods, b.Pods, func(a, b Manifest) bool {
		return a == b || a.Origin == b.Origin && a.Pod != nil && b.Pod != nil && equal(forStart(a.Pod), forStart(b.Pod))
	}) && slices.EqualFunc(a.Objects, b.Objects, func(a, b podspec.Object) bool { return a.Ref == b.Ref && sameObject(a, b) })
}

// forStart returns a pod with what a start needs of it. Of the status that is the phase, and what other components have
// decided.
func forStart(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.ResourceVersion, out.ManagedFields, out.Status = "", nil, corev1.PodStatus{
		Phase: pod.Status.Phase, ResourceClaimStatuses: pod.Status.ResourceClaimStatuses, ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: pod.Status.NodeAllocatableResourceClaimStatuses,
	}
	return &out
}
