package runtime

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// PodUpdater is the capability of a runtime that stores the labels and annotations of
// pods, for instance because it forwards pods to another system. A change of them
// changes no container, so the plan is empty: without this capability the runtime
// receives it with the next Apply.
type PodUpdater interface {
	// UpdatePod updates the labels and annotations that the runtime stores. It is called
	// in a sync of the pod, after Apply, if the runtime has the pod: when they changed,
	// and once by each new agent process. After an error an event is emitted, and the
	// next sync repeats the call. pod is read-only.
	UpdatePod(ctx context.Context, pod *corev1.Pod) error
}
