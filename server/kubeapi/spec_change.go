package kubeapi

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/podspec"
)

func sameSpec(a, b *corev1.PodSpec) bool { return equality.Semantic.DeepEqual(a, b) }

// checkSpecChange returns errors if a pod changes in more than an API server allows: the
// images, an earlier deadline and more tolerations; by subresource, further ephemeral containers or
// another amount of CPU and memory.
func checkSpecChange(subresource string, from, to *corev1.Pod) field.ErrorList {
	allowed := to.Spec.DeepCopy()
	var what string
	var errs field.ErrorList
	switch subresource {
	case "ephemeralcontainers":
		what = "only spec.ephemeralContainers can change here"
		if !keeps(from.Spec.EphemeralContainers, to.Spec.EphemeralContainers) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "containers can only be added"))
		}
		allowed.EphemeralContainers = from.Spec.EphemeralContainers
	case "resize":
		what = "only CPU and memory can change here, and neither a request nor a limit can be removed"
		if class := podspec.QOS(to); class != podspec.QOS(from) { // on which its cgroup depends
			errs = append(errs, field.Invalid(field.NewPath("spec"), class, "Pod QOS Class may not change as a result of resizing"))
		}
		allowed.Resources = withoutResize(allowed.Resources, from.Spec.Resources)
		restore(allowed.Containers, from.Spec.Containers, restoreResources)
		restore(allowed.InitContainers, from.Spec.InitContainers, restoreResources)
	default:
		what = "pod updates may not change fields other than spec.containers[*].image, spec.initContainers[*].image, spec.activeDeadlineSeconds and spec.tolerations (only additions); delete the pod and create it again, as kubectl replace --force does"
		restore(allowed.Containers, from.Spec.Containers, restoreImage)
		restore(allowed.InitContainers, from.Spec.InitContainers, restoreImage)
		if was, is := from.Spec.ActiveDeadlineSeconds, to.Spec.ActiveDeadlineSeconds; was != nil && (is == nil || *is > *was) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "activeDeadlineSeconds"), is, "must be less than or equal to previous value"))
		}
		allowed.ActiveDeadlineSeconds = from.Spec.ActiveDeadlineSeconds
		if !keeps(from.Spec.Tolerations, to.Spec.Tolerations) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "tolerations"), "tolerations can only be added"))
		}
		allowed.Tolerations = from.Spec.Tolerations
	}
	if added := countErrors(&from.Spec, &to.Spec); len(added) > 0 {
		return append(errs, added...)
	}
	if !sameSpec(allowed, &from.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), what))
	}
	return errs
}

// countErrors returns an error for each list of containers that gets longer or shorter.
func countErrors(from, to *corev1.PodSpec) (errs field.ErrorList) {
	const why = "containers cannot be added or removed"
	if len(from.Containers) != len(to.Containers) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "containers"), why))
	}
	if len(from.InitContainers) != len(to.InitContainers) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "initContainers"), why))
	}
	return errs
}

// restore undoes an allowed change of each container of the same place and name.
func restore(to, from []corev1.Container, undo func(to, from *corev1.Container)) {
	for i := range to {
		if i < len(from) && to[i].Name == from[i].Name {
			undo(&to[i], &from[i])
		}
	}
}

func restoreImage(to, from *corev1.Container) { to.Image = from.Image }

func restoreResources(to, from *corev1.Container) {
	to.Resources = *withoutResize(&to.Resources, &from.Resources)
}

// withoutResize returns to with the CPU and the memory of from, except for those that were removed. Both may be nil, for
// none. It may change to.
func withoutResize(to, from *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if to == nil {
		return nil
	}
	had := from
	if had == nil {
		had = &corev1.ResourceRequirements{}
	}
	restoreAmounts(to.Requests, had.Requests)
	restoreAmounts(to.Limits, had.Limits)
	if from == nil && len(to.Requests) == 0 && len(to.Limits) == 0 && len(to.Claims) == 0 {
		return nil
	}
	return to
}

func restoreAmounts(to, from corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if _, ok := to[name]; !ok {
			continue
		}
		delete(to, name)
		if was, ok := from[name]; ok {
			to[name] = was
		}
	}
}

// keeps reports whether all values are still there, unchanged.
func keeps[T any](from, to []T) bool {
	for i := range from {
		if !slices.ContainsFunc(to, func(t T) bool { return equality.Semantic.DeepEqual(from[i], t) }) {
			return false
		}
	}
	return true
}
