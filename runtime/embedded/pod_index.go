package embedded

import (
	"iter"
	"maps"
	"slices"
)

// labelPod is the label by which kubelets assign sandboxes and containers to pods.
// They list by it, one pod at a time.
const labelPod = "io.kubernetes.pod.uid"

// podIndex finds objects by the pod in their labels. Objects without the label are not
// in it.
type podIndex[T comparable] map[string][]T

func (b podIndex[T]) add(labels map[string]string, object T) {
	if pod, ok := labels[labelPod]; ok {
		b[pod] = append(b[pod], object)
	}
}

// drop removes an object, if it is there.
func (b podIndex[T]) drop(labels map[string]string, object T) {
	pod, ok := labels[labelPod]
	if !ok {
		return
	}
	left := slices.DeleteFunc(b[pod], func(other T) bool { return other == object })
	if len(left) == 0 {
		delete(b, pod)
		return
	}
	b[pod] = left
}

// matching returns the objects that can have these labels: those of the pod if the
// labels name one, else all.
func (b podIndex[T]) matching(labels map[string]string, all map[string]T) iter.Seq[T] {
	if pod, ok := labels[labelPod]; ok {
		return slices.Values(b[pod])
	}
	return maps.Values(all)
}
