package podspec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// IsHugePages reports whether a resource is huge pages of one size, such as hugepages-2Mi.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// IsHugePageMedium reports whether an emptyDir with this medium is in huge pages.
func IsHugePageMedium(medium corev1.StorageMedium) bool {
	return medium == corev1.StorageMediumHugePages || strings.HasPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
}

// HugePageSize returns the size in bytes of the pages of an emptyDir in huge pages: that of its
// medium, which the pod must request, or the only one that the pod requests. The error says why
// there is none.
func HugePageSize(pod *corev1.Pod, medium corev1.StorageMedium) (int64, error) {
	requested := hugePagesOf(pod)
	if medium != corev1.StorageMediumHugePages {
		text := strings.TrimPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
		size, err := resource.ParseQuantity(text)
		if err != nil || size.Value() <= 0 {
			return 0, fmt.Errorf("medium %s names no page size: want HugePages-<size>, such as HugePages-2Mi", medium)
		}
		if !slices.Contains(requested, size.Value()) {
			return 0, fmt.Errorf("medium %s: no container requests hugepages-%s", medium, text)
		}
		return size.Value(), nil
	}
	switch len(requested) {
	case 0:
		return 0, errors.New("medium HugePages: no container requests huge pages")
	case 1:
		return requested[0], nil
	}
	return 0, errors.New("medium HugePages: containers request pages of more than one size, so that the medium must name one, as HugePages-2Mi")
}

// hugePagesOf returns the sizes of the huge pages that a pod or its containers request, each once.
func hugePagesOf(pod *corev1.Pod) (sizes []int64) {
	add := func(r *corev1.ResourceRequirements) {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} { // they are equal; a manifest may have only limits
			for name := range list {
				size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
				if IsHugePages(name) && err == nil {
					sizes = append(sizes, size.Value())
				}
			}
		}
	}
	if pod.Spec.Resources != nil {
		add(pod.Spec.Resources)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			add(&containers[i].Resources)
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}
