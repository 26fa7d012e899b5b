package runtime

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// PodUpdater is the capability of a runtime that keeps labels and annotations of
// whole pods, as one does that hands pods on to another system. A change of them
// changes no container, so that there is nothing to plan: without this method the
// runtime hears of it with the next Apply.
type PodUpdater interface {
	// UpdatePod brings what the runtime keeps of the pod to its present labels and
	// annotations. It is called in the pod's own turn, after Apply, for a pod that
	// the runtime has: when they changed, and once by each new agent, which cannot
	// know what the one before it came to. An error is told as an event, and the
	// call repeated in the next turn. pod is read-only.
	UpdatePod(ctx context.Context, pod *corev1.Pod) error
}
