package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// visibleTimeout is how long a provider may not report a pod that it has created. It is
// not created again meanwhile.
const visibleTimeout = 10 * time.Second

// errStillRunning is why a termination is tried again.
var errStillRunning = errors.New("the provider still reports the pod as running")

// SyncPod implements runtime.PodSyncer.
func (r *Runtime) SyncPod(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error) {
	if observed.Object == nil {
		return r.create(ctx, pod)
	}
	sent := r.adopt(pod, observed.Object)
	if !needsUpdate(sent, pod) {
		return runtime.SyncResult{Unchanged: true}, nil
	}
	updater, ok := r.cfg.Provider.(PodUpdater)
	switch {
	case ok:
	case equality.Semantic.DeepEqual(sent.Spec, pod.Spec):
		return runtime.SyncResult{Unchanged: true}, nil
	default:
		return runtime.SyncResult{Unchanged: true}, unsupported("changing the spec of a pod")
	}
	if err := r.change(ctx, r.cfg.Timeout, pod, "update pod", updater.UpdatePod); err != nil {
		return runtime.SyncResult{}, err
	}
	r.setSent(pod)
	return runtime.SyncResult{}, nil
}

// create creates a pod, unless another one has its name, even if that has ended: providers find pods by their names, so
// that its removal would remove the new one.
func (r *Runtime) create(ctx context.Context, pod *corev1.Pod) (runtime.SyncResult, error) {
	if r.calls.isBusy(podKey(pod.UID)) {
		return runtime.SyncResult{}, fmt.Errorf("create pod: %w", errNotReturned) // it may have created the pod by the next sync
	}
	until, err := r.beginCreation(pod)
	if err != nil || !until.IsZero() {
		return runtime.SyncResult{RequeueAt: until, Unchanged: true}, err
	}
	if err := r.change(ctx, r.cfg.Timeout, pod, "create pod", r.cfg.Provider.CreatePod); err != nil {
		return runtime.SyncResult{}, err
	}
	r.mu.Lock()
	r.entry(pod).expectUntil = time.Now().Add(visibleTimeout)
	r.mu.Unlock()
	r.setSent(pod)
	return runtime.SyncResult{}, nil
}

// beginCreation records that a pod is created. It returns until when the provider may not
// report it yet, if it was created just now.
func (r *Runtime) beginCreation(pod *corev1.Pod) (until time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.pods {
		if e.namespace == pod.Namespace && e.name == pod.Name && e.uid != pod.UID && (e.last != nil || e.created) {
			return time.Time{}, fmt.Errorf("create pod: %w: the provider has pod %s of this name, which has not been removed yet", runtime.ErrAlreadyExists, e.uid)
		}
	}
	e := r.entry(pod)
	if time.Now().Before(e.expectUntil) {
		return e.expectUntil, nil
	}
	e.created = true
	return time.Time{}, nil
}

// adopt returns what the provider was last given for a pod: what it reports, if an earlier
// process has created it. A provider that cannot update pods need not store specs.
func (r *Runtime) adopt(pod, object *corev1.Pod) (sent *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(pod)
	if e.sent == nil {
		e.sent = object
		if _, ok := r.cfg.Provider.(PodUpdater); !ok {
			e.sent = pod
		}
	}
	return e.sent
}

func (r *Runtime) setSent(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entry(pod).sent = pod
}

// needsUpdate reports whether the spec, the labels or the annotations of a pod have changed.
func needsUpdate(sent, pod *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(sent.Spec, pod.Spec) || !maps.Equal(sent.Labels, pod.Labels) ||
		!maps.Equal(annotations(sent), annotations(pod))
}

// annotations returns those that do not differ from one process to the next.
func annotations(pod *corev1.Pod) map[string]string {
	out := maps.Clone(pod.Annotations)
	delete(out, podspec.AnnotationFirstSeen)
	return out
}

// podKey is the key of calls that change a pod.
func podKey(uid types.UID) string { return "pod/" + string(uid) }

// change makes a call that changes a pod. The provider gets a copy.
func (r *Runtime) change(ctx context.Context, timeout time.Duration, pod *corev1.Pod, what string, call func(context.Context, *corev1.Pod) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := do(ctx, &r.calls, podKey(pod.UID), what, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, call(ctx, pod.DeepCopy())
	})
	return err
}

// Kill implements agent.Runtime. It deletes the pod, and waits until it has ended. A pod
// that has ended by itself is kept until Remove.
func (r *Runtime) Kill(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, t runtime.Termination) error {
	r.mu.Lock()
	e := r.pods[pod.UID]
	unknown := observed.Object == nil && (e == nil || !e.created)
	r.mu.Unlock()
	if unknown || hasEnded(observed.Object) {
		return nil
	}
	deleted := deletedPod(pod, observed.Object, t.GracePeriod)
	timeout := min(t.GracePeriod, math.MaxInt64-r.cfg.Timeout) + r.cfg.Timeout // a grace period may be endless
	if err := r.change(ctx, timeout, deleted, "delete pod", r.cfg.Provider.DeletePod); err != nil && !IsNotFound(err) {
		return err
	}
	waitCtx, cancel := context.WithTimeoutCause(ctx, timeout, errStillRunning)
	defer cancel()
	return r.awaitEnd(waitCtx, pod.UID)
}

// deletedPod returns the pod that DeletePod gets. Of a pod that no source contains, it is
// what the provider reports.
func deletedPod(pod, object *corev1.Pod, grace time.Duration) *corev1.Pod {
	uid, namespace, name := pod.UID, pod.Namespace, pod.Name
	if len(pod.Spec.Containers) == 0 && object != nil {
		pod = object
	}
	out := pod.DeepCopy()
	out.UID, out.Namespace, out.Name = uid, namespace, name
	seconds := int64(grace / time.Second)
	out.DeletionGracePeriodSeconds = &seconds
	if out.DeletionTimestamp == nil {
		out.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(grace)}
	}
	return out
}

// Remove implements agent.Runtime. It removes a pod that has ended.
func (r *Runtime) Remove(ctx context.Context, observed runtime.Pod) error {
	if observed.CouldHaveRunningContainers() {
		return fmt.Errorf("remove pod: %w", errStillRunning)
	}
	if observed.Object != nil {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: observed.UID, Namespace: observed.Namespace, Name: observed.Name}}
		if err := r.change(ctx, r.cfg.Timeout, deletedPod(pod, observed.Object, 0), "delete pod", r.cfg.Provider.DeletePod); err != nil && !IsNotFound(err) {
			return err
		}
	}
	r.forget(observed.UID)
	return nil
}

func (r *Runtime) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, uid)
}

// Apply implements agent.Runtime. No plan is made for pods of a provider: what is left is
// the request to restart one container.
func (r *Runtime) Apply(_ context.Context, _ *corev1.Pod, plan []runtime.Action, _ runtime.RunOptions) runtime.ApplyResult {
	result := runtime.ApplyResult{Failures: map[string]runtime.Failure{}}
	for _, a := range plan {
		err := unsupported("restarting one container")
		result.Failures[a.Container] = runtime.Failure{Reason: "Unsupported", Message: err.Error(), Err: err}
	}
	return result
}
