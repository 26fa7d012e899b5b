package provider

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// fetch asks the provider for its pods.
func (r *Runtime) fetch(ctx context.Context) (pods []*corev1.Pod, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	err = safe.Call(r.cfg.Logger, "list pods", func() error {
		reported, err := r.cfg.Provider.GetPods(ctx)
		for _, pod := range reported {
			if pod != nil {
				pods = append(pods, pod.DeepCopy())
			}
		}
		return err
	})
	return pods, err
}

// Pods implements agent.Runtime. It returns what the provider has, and the pods that it has
// ended and does not return any more.
func (r *Runtime) Pods(ctx context.Context) ([]runtime.Pod, error) {
	asked := r.endsSoFar()
	listed, err := r.list.get(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[types.UID]bool{}
	var pods []runtime.Pod
	for _, pod := range listed {
		e := r.entryOf(pod)
		if e == nil || found[e.uid] {
			continue
		}
		found[e.uid] = true
		pods = append(pods, r.observed(e, pod, asked))
	}
	for uid, e := range r.pods {
		if found[uid] {
			continue
		}
		if p := r.observed(e, nil, asked); !p.IsEmpty() {
			pods = append(pods, p)
		} else if !e.created {
			delete(r.pods, uid)
		}
	}
	return pods, nil
}

// Pod implements agent.Runtime.
func (r *Runtime) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	r.mu.Lock()
	e, asked := r.pods[uid], r.ends
	r.mu.Unlock()
	if getter, ok := r.cfg.Provider.(PodGetter); ok && e != nil {
		return r.getPod(ctx, getter, e, asked)
	}
	listed, err := r.list.get(ctx)
	if err != nil {
		return runtime.Pod{}, fmt.Errorf("list pods: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pod := range listed {
		if e := r.entryOf(pod); e != nil && e.uid == uid {
			return r.observed(e, pod, asked), nil
		}
	}
	if e := r.pods[uid]; e != nil {
		return r.observed(e, nil, asked), nil
	}
	return runtime.Pod{UID: uid}, nil
}

func (r *Runtime) getPod(ctx context.Context, getter PodGetter, e *podEntry, asked uint64) (runtime.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	pod, err := do(ctx, &r.calls, "get/"+string(e.uid), "get pod", func(ctx context.Context) (*corev1.Pod, error) {
		pod, err := getter.GetPod(ctx, e.namespace, e.name)
		return pod.DeepCopy(), err
	})
	if err != nil && !IsNotFound(err) {
		return runtime.Pod{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || pod != nil && pod.UID != e.uid && pod.UID != "" { // another pod has the name now
		pod = nil
	}
	return r.observed(e, pod, asked), nil
}

// entryOf returns the entry of a pod that the provider reports, or nil if it is not known
// which pod that is. A provider that has not stored the UID is helped by the names of the
// pods that this process has created. r.mu is held.
func (r *Runtime) entryOf(pod *corev1.Pod) *podEntry {
	if pod.UID == "" {
		for _, e := range r.pods {
			if e.namespace == pod.Namespace && e.name == pod.Name {
				return e
			}
		}
		return nil
	}
	return r.entry(pod)
}

// entry returns the entry of a pod and adds it if it is new. r.mu is held.
func (r *Runtime) entry(pod *corev1.Pod) *podEntry {
	e := r.pods[pod.UID]
	if e == nil {
		e = &podEntry{uid: pod.UID, namespace: pod.Namespace, name: pod.Name, changed: make(chan struct{})}
		r.pods[pod.UID] = e
	}
	return e
}

// observed records what the provider reports of a pod, nil for nothing, and returns the
// observed state. A pod that has ended stays known by its last status: a provider may
// forget it at once, and may have been asked before the end. asked is Runtime.ends at that
// time. r.mu is held.
func (r *Runtime) observed(e *podEntry, pod *corev1.Pod, asked uint64) runtime.Pod {
	if pod != nil {
		e.expectUntil = time.Time{}
	}
	isOld := e.endedAt > asked && !hasEnded(pod)
	if !hasEnded(e.last) || pod != nil && !isOld {
		e.last = pod
	}
	return runtime.Pod{UID: e.uid, Namespace: e.namespace, Name: e.name, Object: e.last}
}

// endsSoFar returns Runtime.ends.
func (r *Runtime) endsSoFar() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ends
}

func hasEnded(pod *corev1.Pod) bool {
	return pod != nil && podspec.IsTerminalPhase(pod.Status.Phase)
}

// Watch implements agent.Runtime, with the notifications of the provider.
func (r *Runtime) Watch(ctx context.Context, onEvent func(types.UID)) error {
	notifier, ok := r.cfg.Provider.(PodNotifier)
	if !ok {
		return unsupported("notification of changes")
	}
	r.mu.Lock()
	r.onEvent = onEvent
	r.mu.Unlock()
	panicked := make(chan error, 1)
	go func() { // a provider may block in it until ctx is done
		if err := safe.Call(r.cfg.Logger, "notify pods", func() error { notifier.NotifyPods(ctx, r.notify); return nil }); err != nil {
			panicked <- err
		}
	}()
	var err error
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case err = <-panicked:
	}
	r.mu.Lock()
	r.onEvent = nil
	r.mu.Unlock()
	return err
}

// notify handles a notification. The status in it counts only if the pod has ended, because
// the provider may not report it again; otherwise the pod is inspected.
func (r *Runtime) notify(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	pod = pod.DeepCopy()
	r.mu.Lock()
	uid, onEvent := pod.UID, r.onEvent
	if e := r.known(pod); e != nil {
		uid = e.uid
		if hasEnded(pod) {
			r.ends++
			e.last, e.endedAt = pod, r.ends
		}
		close(e.changed)
		e.changed = make(chan struct{})
	}
	r.mu.Unlock()
	if onEvent != nil && uid != "" {
		onEvent(uid)
	}
}

// known returns the entry of a pod, or nil. r.mu is held.
func (r *Runtime) known(pod *corev1.Pod) *podEntry {
	if pod.UID == "" {
		return r.entryOf(pod)
	}
	return r.pods[pod.UID]
}

// Polling intervals of a pod that is ending, without notifications.
const (
	minPollPeriod = 100 * time.Millisecond
	maxPollPeriod = 5 * time.Second
)

// awaitEnd waits until the provider reports that a pod has ended, or does not have it.
func (r *Runtime) awaitEnd(ctx context.Context, uid types.UID) error {
	for period := minPollPeriod; ; period = min(2*period, maxPollPeriod) {
		r.mu.Lock()
		e := r.pods[uid]
		if e == nil {
			r.mu.Unlock()
			return nil
		}
		changed := e.changed
		r.mu.Unlock()
		observed, err := r.Pod(ctx, uid)
		if err == nil && !observed.CouldHaveRunningContainers() {
			return nil
		}
		timer := time.NewTimer(period)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}
