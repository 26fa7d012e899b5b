package imagegc

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Syncer does the work for one pod, as podworkers.Syncer. A podsync.Syncer implements it.
type Syncer interface {
	Sync(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error)
	Terminate(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, t runtime.Termination) error
	Finish(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error
}

// Leaser gives and ends leases of pods on images. Collector implements it.
type Leaser interface {
	Lease(ctx context.Context, uid types.UID, refs []string) error
	Release(uid types.UID)
}

// LeasingSyncer decorates a Syncer: a pod has a lease on its images from its first sync
// until its containers have terminated. Both fields are required.
//
// Pods that end without being terminated through it still need a Release: those that are
// rejected, and those that have finished before the agent started. See
// podworkers.Hooks.PodFinished and syncloop.PodManagerHooks.Rejected.
type LeasingSyncer struct {
	Syncer
	Images Leaser
}

// Sync acquires the lease, waits until removals of the pod's images have ended, and
// calls the decorated Syncer.
func (l LeasingSyncer) Sync(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error) {
	if err := l.Images.Lease(ctx, pod.UID, ImageRefs(pod)); err != nil {
		return runtime.SyncResult{}, fmt.Errorf("wait for an image that is being removed: %w", err)
	}
	return l.Syncer.Sync(ctx, pod, observed)
}

// Terminate calls the decorated Syncer and ends the lease if that returns nil.
func (l LeasingSyncer) Terminate(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, t runtime.Termination) error {
	err := l.Syncer.Terminate(ctx, pod, observed, t)
	if err == nil {
		l.Images.Release(pod.UID)
	}
	return err
}
