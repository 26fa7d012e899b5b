// Package podinput tells that a decision about a pod has the same input as an earlier one, so that
// it need not be made again. This is the case in most syncs of most pods.
package podinput

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Input is a pod, its observed state, and the results of its probes. It keeps what it was made of
// in memory. The zero value equals no other.
type Input struct {
	pod        *corev1.Pod
	observedAt time.Time
	sandboxes  []runtime.Sandbox
	containers []runtime.Container
	object     *corev1.Pod
	probes     []runtime.ProbeResults // of the containers, in their order
}

// Of returns the input that consists of these.
func Of(pod *corev1.Pod, observed *runtime.Pod, probes runtime.PodProbeResults) Input {
	in := Input{pod: pod, observedAt: observed.ObservedAt, sandboxes: observed.Sandboxes, containers: observed.Containers, object: observed.Object}
	if len(probes) > 0 {
		in.probes = make([]runtime.ProbeResults, len(in.containers))
		for i := range in.containers {
			in.probes[i] = probes[in.containers[i].ID]
		}
	}
	return in
}

// Equal reports whether the input consists of these. Pods and observed states are compared by
// address, as they are read-only: those of one inspection are the same memory. It does not
// allocate.
func (in *Input) Equal(pod *corev1.Pod, observed *runtime.Pod, probes runtime.PodProbeResults) bool {
	return in.pod != nil && in.pod == pod && in.observedAt.Equal(observed.ObservedAt) && in.object == observed.Object &&
		sameMemory(in.sandboxes, observed.Sandboxes) && sameMemory(in.containers, observed.Containers) && in.sameProbes(probes)
}

func (in *Input) sameProbes(probes runtime.PodProbeResults) bool {
	for i := range in.containers {
		var previous runtime.ProbeResults
		if in.probes != nil {
			previous = in.probes[i]
		}
		if probes[in.containers[i].ID] != previous {
			return false
		}
	}
	return true
}

func sameMemory[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
