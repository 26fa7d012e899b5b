package podsource

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// restoredPods are the pods of the previous process. The zero value has none.
type restoredPods struct {
	uids  map[types.UID]bool
	alive []*corev1.Pod // those that had not ended
}

func newRestoredPods(pods []*corev1.Pod) restoredPods {
	r := restoredPods{uids: make(map[types.UID]bool, len(pods))}
	for _, pod := range pods {
		r.uids[pod.UID] = true
		if !podspec.IsTerminalPhase(pod.Status.Phase) {
			r.alive = append(r.alive, pod)
		}
	}
	return r
}

// expected returns, by full name, the pods that may run and that their source may still deliver. A source
// that was first in this process must not take the name of such a pod, which would be terminated.
func (r restoredPods) expected(sources []*sourceState) map[string]*corev1.Pod {
	pods := map[string]*corev1.Pod{}
	for _, pod := range r.alive {
		full := podspec.FullName(pod)
		for _, d := range sources {
			if d.source == pod.Annotations[podspec.AnnotationSource] && d.mayDeliver(full) && pods[full] == nil {
				pods[full] = pod
			}
		}
	}
	return pods
}

// mayDeliver reports whether the source may have a pod of that full name, but has not delivered it yet.
func (d *sourceState) mayDeliver(full string) bool {
	switch {
	case !d.received, d.reservedNames[full]:
		return true
	case d.complete:
		return false
	}
	return !slices.ContainsFunc(d.entries, func(e *entry) bool { return e.full == full })
}

// waitsFor returns the expected pod for which an entry of another source waits, or nil.
func (r restoredPods) waitsFor(e *entry, expected map[string]*corev1.Pod) *corev1.Pod {
	first := expected[e.full]
	if first == nil || r.uids[e.pod.UID] || first.Annotations[podspec.AnnotationSource] == e.source {
		return nil
	}
	return first
}
