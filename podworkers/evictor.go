package podworkers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Evictor evicts pods through their workers. It is an eviction.Pods and a
// stats.ActivePods.
type Evictor struct {
	Workers  EvictorWorkers
	Statuses EvictorStatuses
}

// EvictorWorkers are the workers of the pods. See Workers.
type EvictorWorkers interface {
	State(uid types.UID) (State, bool)
	Kill(ctx context.Context, uid types.UID, k KillOptions) error
}

// EvictorStatuses returns all pods with a status. See status.Manager.
type EvictorStatuses interface {
	Pods() []*corev1.Pod
}

// ActivePods returns the pods that may have containers, with their newest status.
func (e Evictor) ActivePods() []*corev1.Pod {
	var active []*corev1.Pod
	for _, pod := range e.Statuses.Pods() {
		if st, ok := e.Workers.State(pod.UID); ok && st.Phase < Terminated {
			active = append(active, pod)
		}
	}
	return active
}

// Evict terminates the pod and waits until it has finished or ctx is done.
func (e Evictor) Evict(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	return e.Workers.Kill(ctx, pod.UID, KillOptions{Termination: t, WaitUntilFinished: true})
}
