package status

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// Sink is where statuses go. A Manager calls it from many goroutines, but for
// one pod never more than once at a time. Of different pods nothing is said of the
// order, also of two that bear one name one after the other: the last status of the
// former may come after the first of the next, so tell them apart by their UIDs. pod is the newest pod object that the
// Manager has; both arguments are read-only. An error makes the newest status
// of the pod be sent again later. The sink must end when ctx does.
type Sink interface {
	SetStatus(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error
}

// Deleter is a Sink that also wants to hear when a pod is wholly gone: its
// containers are, its resources were reclaimed, and its last status was told. That
// is when no source names it any more, or it has a deletion timestamp.
// An error makes the call be made again.
type Deleter interface {
	DeleteStatus(ctx context.Context, pod *corev1.Pod) error
}

// SinkFunc makes a function a Sink.
type SinkFunc func(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error

// SetStatus calls f.
func (f SinkFunc) SetStatus(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	return f(ctx, pod, st)
}
