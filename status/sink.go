package status

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Sink receives statuses. A Manager calls it from many goroutines, but never twice
// at the same time for one pod. There is no order between pods, not even between
// two pods with the same name: the last status of the first can arrive after the
// first status of the second, so distinguish them by UID.
//
// pod is the newest pod object of the Manager. Both arguments are read-only. After
// an error the newest status of the pod is sent again later. SetStatus must return
// when ctx is done.
type Sink interface {
	SetStatus(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error
}

// Deleter is an optional interface of a Sink. DeleteStatus is called when a pod is
// deleted and finished: no source contains it any more or it has a deletion
// timestamp, its containers and resources were removed, and its last status was
// sent. After an error the call is repeated. A Retainer is called when no source
// contains the pod any more.
type Deleter interface {
	DeleteStatus(ctx context.Context, pod *corev1.Pod) error
}

// Retainer is an optional interface of a Deleter. If RetainsDeleted returns true, which is asked once, the sink keeps
// a pod that is deleted and finished until no source contains it, as one must that tells the next process how pods ended.
type Retainer interface {
	RetainsDeleted() bool
}

// Delayer is an optional interface of a Sink. Delay returns how long the first status of a
// pod may wait for a newer one, which is then sent in its place; 0 has it sent as soon as
// possible. The wait counts from the first of them, and ends at once for a status that may
// not wait, for a deletion, and for the end of Run. Once the sink has a status of the pod,
// which can be wrong, newer ones do not wait. Delay must not block; st is read-only.
type Delayer interface {
	Delay(st *corev1.PodStatus) time.Duration
}

// SinkFunc makes a function a Sink.
type SinkFunc func(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error

// SetStatus calls f.
func (f SinkFunc) SetStatus(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	return f(ctx, pod, st)
}
