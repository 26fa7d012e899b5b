package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
)

// timers is a provider: a pod is a timer, which runs for the duration that the first argument of its container says.
type timers struct {
	mu   sync.Mutex
	pods map[string]*corev1.Pod // by namespace/name
}

// CreatePod implements provider.Provider.
func (t *timers) CreatePod(_ context.Context, pod *corev1.Pod) error {
	d, err := time.ParseDuration(strings.Join(pod.Spec.Containers[0].Args, " "))
	if err != nil {
		return fmt.Errorf("a timer needs a duration: %w: %w", runtime.ErrInvalid, err)
	}
	start := metav1.Now()
	t.set(pod, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: start}})
	time.AfterFunc(d, func() {
		t.set(pod, corev1.PodSucceeded, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: start, FinishedAt: metav1.Now()}})
	})
	return nil
}

// set sets the status of a pod, unless it was deleted meanwhile.
func (t *timers) set(pod *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) {
	c := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, Ready: state.Running != nil, State: state}
	t.mu.Lock()
	defer t.mu.Unlock()
	if key := pod.Namespace + "/" + pod.Name; c.Ready || t.pods[key] != nil && t.pods[key].UID == pod.UID {
		t.pods[key] = pod.DeepCopy() // the previous one was passed on
		t.pods[key].Status = corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{c}}
	}
}

// DeletePod implements provider.Provider.
func (t *timers) DeletePod(_ context.Context, pod *corev1.Pod) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, pod.Namespace+"/"+pod.Name)
	return nil
}

// GetPods implements provider.Provider.
func (t *timers) GetPods(context.Context) ([]*corev1.Pod, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.pods)), nil
}

// GetContainerLogs implements provider.LogReader.
func (t *timers) GetContainerLogs(_ context.Context, _, pod, _ string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("the timer " + pod + " was started\n")), nil
}
