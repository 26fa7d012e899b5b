package embedded

import (
	"iter"
	"maps"
	"slices"
)

// labelPod is the label with which kubelets say which pod a sandbox or container
// is of. They list by it over and over, a pod at a time.
const labelPod = "io.kubernetes.pod.uid"

// podIndex finds things by the pod that their labels name. Others are not in it.
type podIndex[T comparable] map[string][]T

func (b podIndex[T]) add(labels map[string]string, thing T) {
	if pod, ok := labels[labelPod]; ok {
		b[pod] = append(b[pod], thing)
	}
}

// drop takes a thing out, if it is there.
func (b podIndex[T]) drop(labels map[string]string, thing T) {
	pod, ok := labels[labelPod]
	if !ok {
		return
	}
	left := slices.DeleteFunc(b[pod], func(other T) bool { return other == thing })
	if len(left) == 0 {
		delete(b, pod)
		return
	}
	b[pod] = left
}

// matching returns all in which things with these labels can be found: the pod's
// if they name one, else everything there is.
func (b podIndex[T]) matching(labels map[string]string, all map[string]T) iter.Seq[T] {
	if pod, ok := labels[labelPod]; ok {
		return slices.Values(b[pod])
	}
	return maps.Values(all)
}
