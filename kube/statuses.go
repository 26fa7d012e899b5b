package kube

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/status"
)

// Statuses is the sink that keeps the statuses of pods in the API server. It needs a
// status.Manager, which retries what fails, sends only the newest status of a pod and
// one at a time.
//
// A status is sent as a strategic merge patch of the status subresource that has only
// what differs, with the UID as a precondition. Nothing is sent if the server has the
// status already. Conditions and fields of other components are kept. At most
// Config.StatusQPS patches a second are sent.
//
// A pod with a deletion timestamp is deleted, with grace period 0 and its UID as a
// precondition, when it is finished and the server has accepted its last status. A pod
// that the server no longer has, or has with another UID, is not an error.
//
// The status of a static pod is that of its mirror pod, which is created when the pod
// has its first status, replaced when it is that of another version of the pod, and
// deleted with the pod.
type Statuses struct {
	k       *Kube
	limiter *rate.Limiter

	mu   sync.Mutex            // guards sent
	sent map[types.UID]sentPod // the last status of each pod that the sink was given
}

// sentPod is a pod of the node with the status that the API server should have.
type sentPod struct {
	pod    *corev1.Pod
	status *corev1.PodStatus
}

var (
	_ status.Sink    = (*Statuses)(nil)
	_ status.Deleter = (*Statuses)(nil)
)

// sendTimeout bounds the requests for one status. It is short, because the first request
// after a time without API server may be one that began in it.
const sendTimeout = 10 * time.Second

// Statuses returns the status sink. All calls return the same one.
func (k *Kube) Statuses() *Statuses { return k.statuses }

// SetStatus implements status.Sink.
func (s *Statuses) SetStatus(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	s.mu.Lock()
	s.sent[pod.UID] = sentPod{pod, &st}
	s.mu.Unlock()
	return asRejected(s.send(ctx, pod, &st))
}

// asRejected has the error of a status that the server rejects wrap status.ErrRejected: it would reject
// it each time.
func asRejected(err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return fmt.Errorf("%w: %w", status.ErrRejected, err)
	}
	return err
}

func (s *Statuses) send(ctx context.Context, pod *corev1.Pod, st *corev1.PodStatus) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if !podspec.IsStatic(pod) {
		base, synced := s.k.store.get(keyOf(pod))
		if synced && (base == nil || base.UID != pod.UID) {
			return nil // it was deleted
		}
		return s.patch(ctx, pod, base, st)
	}
	mirror, err := s.k.mirrors.ensure(ctx, pod)
	if mirror == nil || err != nil {
		return err
	}
	return s.patch(ctx, mirror, mirror, st)
}

// patch gives a pod the status. base is its newest known version, or nil. A base that is
// not known, or that the server has not any more, is read.
func (s *Statuses) patch(ctx context.Context, pod, base *corev1.Pod, st *corev1.PodStatus) error {
	pods := s.k.cfg.Client.CoreV1().Pods(pod.Namespace)
	for fresh := false; ; fresh = true {
		if base == nil {
			var err error
			base, err = pods.Get(ctx, pod.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("get pod: %w", err)
			}
			fresh = true
		}
		if base.UID != pod.UID {
			return nil // the pod was deleted, and another one has its name
		}
		patch, err := statusPatch(base, st)
		if patch == nil || err != nil {
			return err
		}
		if err := s.limiter.Wait(ctx); err != nil {
			return fmt.Errorf("wait to patch status: %w", err)
		}
		updated, err := pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		switch {
		case err == nil:
			s.k.store.observe(updated)
			return nil
		case apierrors.IsNotFound(err):
			return nil
		case !fresh && (apierrors.IsConflict(err) || apierrors.IsInvalid(err)):
			base = nil
			continue
		}
		return fmt.Errorf("patch pod status: %w", err)
	}
}

// DeleteStatus implements status.Deleter. A pod without deletion timestamp is not
// deleted: only who deletes a pod decides that it goes.
func (s *Statuses) DeleteStatus(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	var err error
	switch {
	case podspec.IsStatic(pod):
		err = s.k.mirrors.remove(ctx, pod)
	case pod.DeletionTimestamp != nil:
		err = s.k.deletePod(ctx, pod)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.sent, pod.UID)
	s.mu.Unlock()
	return nil
}

// deletePod removes a pod from the API server at once, unless the server has it no
// longer, or only another pod of its name.
func (k *Kube) deletePod(ctx context.Context, pod *corev1.Pod) error {
	if stored, synced := k.store.get(keyOf(pod)); synced && (stored == nil || stored.UID != pod.UID) {
		return nil
	}
	err := k.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64),
		Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete pod: %w", err)
}

// sentPods returns the pods that the sink was given and that are not finished.
func (s *Statuses) sentPods() map[types.UID]sentPod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.sent)
}

// isOutdated reports whether the API server is known to have another status than the
// last one of this pod, or lacks the mirror pod of a static pod.
func (s *Statuses) isOutdated(sent sentPod) bool {
	stored, synced := s.k.store.get(keyOf(sent.pod))
	if podspec.IsStatic(sent.pod) {
		if !synced || !s.k.mirrors.owns(sent.pod) {
			return false
		}
		if stored == nil || !isMirrorOf(stored, sent.pod) {
			return true
		}
	} else if stored == nil || stored.UID != sent.pod.UID {
		return false
	}
	patch, err := statusPatch(stored, sent.status)
	return err == nil && patch != nil
}
