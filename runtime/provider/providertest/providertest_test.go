package providertest_test

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime/provider/providertest"
)

// memory is a provider with all that is tested.
type memory struct {
	mu     sync.Mutex
	pods   map[string]*corev1.Pod
	notify func(*corev1.Pod)
}

func (m *memory) CreatePod(_ context.Context, pod *corev1.Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	pod.Status.Phase = corev1.PodRunning
	m.pods[pod.Name] = pod
	return nil
}

func (m *memory) UpdatePod(ctx context.Context, pod *corev1.Pod) error { return m.CreatePod(ctx, pod) }

func (m *memory) DeletePod(_ context.Context, pod *corev1.Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, pod.Name)
	if m.notify != nil {
		pod.Status.Phase = corev1.PodSucceeded
		m.notify(pod)
	}
	return nil
}

func (m *memory) GetPods(context.Context) (pods []*corev1.Pod, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pod := range m.pods {
		pods = append(pods, pod.DeepCopy())
	}
	return pods, nil
}

func (m *memory) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[name].DeepCopy(), nil
}

func (m *memory) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notify = notify
}

// blocking is a provider that blocks in NotifyPods until the context is done, as an agent permits.
type blocking struct{ *memory }

func (b blocking) NotifyPods(ctx context.Context, notify func(*corev1.Pod)) {
	b.memory.NotifyPods(ctx, notify)
	<-ctx.Done()
}

func TestTestProvider(t *testing.T) {
	template := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	providertest.TestProvider(t, &memory{pods: map[string]*corev1.Pod{}}, template)
	providertest.TestProvider(t, blocking{&memory{pods: map[string]*corev1.Pod{}}}, template)
}
