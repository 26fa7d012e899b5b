package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// timers is a provider: a pod is a timer, which runs for the duration that the first argument of its container says.
type timers struct {
	mu   sync.Mutex
	pods map[string]*corev1.Pod // by namespace/name
}

// CreatePod implements provider.Provider.
func (t *timers) CreatePod(_ context.Context, pod *corev1.Pod) error {
	c := pod.Spec.Containers[0]
	d, err := time.ParseDuration(strings.Join(c.Args, " "))
	if err != nil {
		return fmt.Errorf("a timer needs a duration: %w: %w", runtime.ErrInvalid, err)
	}
	t.set(pod, corev1.PodRunning, corev1.ContainerStatus{Name: c.Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	time.AfterFunc(d, func() {
		t.set(pod, corev1.PodSucceeded, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}})
	})
	return nil
}

// set sets the status of a pod, unless it was deleted meanwhile.
func (t *timers) set(pod *corev1.Pod, phase corev1.PodPhase, c corev1.ContainerStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := pod.Namespace + "/" + pod.Name
	if known := t.pods[key]; c.Ready || known != nil && known.UID == pod.UID {
		pod = pod.DeepCopy() // the previous one was passed on
		pod.Status = corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{c}}
		t.pods[key] = pod
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
func (t *timers) GetPods(context.Context) (pods []*corev1.Pod, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pod := range t.pods {
		pods = append(pods, pod)
	}
	return pods, nil
}

// GetContainerLogs implements provider.LogReader.
func (t *timers) GetContainerLogs(_ context.Context, _, pod, _ string, _ *corev1.PodLogOptions) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("the timer " + pod + " was started\n")), nil
}
