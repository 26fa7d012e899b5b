package podsource

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// restoredPods are the pods of the previous process. The zero value has none.
type restoredPods struct {
	alive map[types.UID]bool // of each pod whether it had not ended
	pods  []*corev1.Pod      // those that had not ended
}

func newRestoredPods(pods []*corev1.Pod) restoredPods {
	r := restoredPods{alive: make(map[types.UID]bool, len(pods))}
	for _, pod := range pods {
		r.alive[pod.UID] = !podspec.IsTerminalPhase(pod.Status.Phase)
		if r.alive[pod.UID] {
			r.pods = append(r.pods, pod)
		}
	}
	return r
}

// expected returns, by full name, the pods that may run and that their source may still deliver. A source
// that was first in this process must not take the name of such a pod, which would be terminated.
func (r restoredPods) expected(sources []*sourceState) map[string]*corev1.Pod {
	pods := map[string]*corev1.Pod{}
	if len(r.pods) == 0 {
		return pods
	}
	delivered := make([]map[string]bool, len(sources))
	for i, d := range sources {
		delivered[i] = d.deliveredNames()
	}
	for _, pod := range r.pods {
		full := podspec.FullName(pod)
		for i, d := range sources {
			if d.source == pod.Annotations[podspec.AnnotationSource] && d.mayDeliver(full, delivered[i]) && pods[full] == nil {
				pods[full] = pod
			}
		}
	}
	return pods
}

// deliveredNames returns the full names of the pods that an incomplete source has delivered.
func (d *sourceState) deliveredNames() map[string]bool {
	if d.complete {
		return nil
	}
	names := make(map[string]bool, len(d.entries))
	for _, e := range d.entries {
		names[e.full] = true
	}
	return names
}

// mayDeliver reports whether the source may have a pod of that full name, but has not delivered it yet.
func (d *sourceState) mayDeliver(full string, delivered map[string]bool) bool {
	return !d.received || d.reservedNames[full] || !d.complete && !delivered[full]
}

// waiting returns the entries that wait, each with the expected pod of another source for which it does.
func (r restoredPods) waiting(sources []*sourceState, expected map[string]*corev1.Pod) map[*entry]*corev1.Pod {
	waiting := map[*entry]*corev1.Pod{}
	if len(expected) == 0 {
		return waiting
	}
	for _, d := range sources {
		for _, e := range d.entries {
			if first := expected[e.full]; first != nil && !r.alive[e.pod.UID] && first.Annotations[podspec.AnnotationSource] != e.source {
				waiting[e] = first
			}
		}
	}
	return waiting
}
