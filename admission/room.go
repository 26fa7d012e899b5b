package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
)

// room checks the number of pods, then each resource that the pod requests.
func (a *Admission) room(pod *corev1.Pod, others []*corev1.Pod) podspec.Verdict {
	if a.cfg.MaxPods > 0 {
		n := 0
		for _, other := range others {
			if counts(other, pod) {
				n++
			}
		}
		if n >= a.cfg.MaxPods {
			return outOf(corev1.ResourcePods, 1, int64(n), int64(a.cfg.MaxPods))
		}
	}
	if a.cfg.Allocatable == nil {
		return podspec.Admitted()
	}
	requests := podspec.Requests(pod)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		want, there := requests[name], a.cfg.Allocatable[name]
		if want.Sign() <= 0 || !a.checked(pod, name) {
			continue
		}
		requested, capacity := amount(name, want), amount(name, there)
		var used int64
		for _, other := range others {
			if counts(other, pod) {
				used = add(used, requestOf(other, name))
			}
		}
		if requested > capacity-min(used, capacity) {
			return outOf(name, requested, used, capacity)
		}
	}
	return podspec.Admitted()
}

// outOf words a lack the way the kubelet does: cpu in thousandths.
func outOf(name corev1.ResourceName, requested, used, capacity int64) podspec.Verdict {
	return podspec.Refused(ReasonOutOf+string(name), fmt.Sprintf(
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity))
}

// checked reports whether a resource is counted at all. Huge pages that the
// node does not name it does not have. A device that it does not name may be
// one of the cluster's, if a scheduler sent the pod here, and is missing if the
// pod is static.
func (a *Admission) checked(pod *corev1.Pod, name corev1.ResourceName) bool {
	if _, known := a.cfg.Allocatable[name]; known {
		return true
	}
	if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
		return true
	}
	return strings.Contains(string(name), "/") && podspec.IsStatic(pod)
}

// amount is a quantity as it is counted here: cpu in thousandths.
func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// requestOf is podspec.Requests for one resource, without making any lists: it
// is called for each pod of the node whenever one is added.
func requestOf(pod *corev1.Pod, name corev1.ResourceName) int64 {
	total, whole := podLevel(pod, name)
	if !whole {
		total = together(pod, name)
	}
	if extra, ok := pod.Spec.Overhead[name]; ok {
		total = add(total, amount(name, extra))
	}
	return total
}

// podLevel is what the pod requests for all its containers, if it does.
func podLevel(pod *corev1.Pod, name corev1.ResourceName) (int64, bool) {
	if pod.Spec.Resources == nil {
		return 0, false
	}
	q, ok := pod.Spec.Resources.Requests[name]
	countable := name == corev1.ResourceCPU || name == corev1.ResourceMemory ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
	return amount(name, q), ok && countable
}

// together is the most that the pod's containers request at any one time.
func together(pod *corev1.Pod, name corev1.ResourceName) int64 {
	var running, most int64
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		now := add(running, amount(name, c.Resources.Requests[name]))
		most = max(most, now)
		if podspec.IsSidecar(c) {
			running = now
		}
	}
	for i := range pod.Spec.Containers {
		running = add(running, amount(name, pod.Spec.Containers[i].Resources.Requests[name]))
	}
	return max(most, running)
}

// add stays at the highest number instead of going over it.
func add(a, b int64) int64 {
	if sum := a + b; sum >= a || b < 0 {
		return sum
	}
	return 1<<63 - 1
}
