package runtime

import (
	"iter"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// ContainerSpecs iterates over the containers of the pod's spec with their types: init
// containers and sidecars in the order of the spec, then regular ones, then ephemeral ones.
// They are pointers into the pod; an ephemeral container is returned without its target.
func ContainerSpecs(pod *corev1.Pod) iter.Seq2[*corev1.Container, ContainerType] {
	return func(yield func(*corev1.Container, ContainerType) bool) {
		for i := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[i]
			if !yield(c, initKind(c)) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i], Regular) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield(ephemeral(&pod.Spec.EphemeralContainers[i]), Ephemeral) {
				return
			}
		}
	}
}

// ContainerSpec returns the container of that name in the pod's spec, or nil.
func ContainerSpec(pod *corev1.Pod, name string) *corev1.Container {
	c, _ := find(pod, name)
	return c
}

// ContainerTypeOf returns the type of the container of that name in the pod's spec. It is
// false if the spec has no such container.
func ContainerTypeOf(pod *corev1.Pod, name string) (ContainerType, bool) {
	c, kind := find(pod, name)
	return kind, c != nil
}

func find(pod *corev1.Pod, name string) (*corev1.Container, ContainerType) {
	for c, kind := range ContainerSpecs(pod) {
		if c.Name == name {
			return c, kind
		}
	}
	return nil, Regular
}

func initKind(c *corev1.Container) ContainerType {
	if podspec.IsSidecar(c) {
		return Sidecar
	}
	return Init
}

// ephemeral converts an ephemeral container to a container without the target: the API
// keeps the fields of the two types equal.
func ephemeral(e *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&e.EphemeralContainerCommon)
}
