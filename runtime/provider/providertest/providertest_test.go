package providertest_test

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime/provider"
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
	providertest.TestProvider(t, &memory{pods: map[string]*corev1.Pod{}}, template())
	providertest.TestProvider(t, blocking{&memory{pods: map[string]*corev1.Pod{}}}, template())
}

func template() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

// Two runs at once do not see each other's pods.
func TestTestProvider_Twice(t *testing.T) {
	p := &memory{pods: map[string]*corev1.Pod{}}
	for range 2 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			providertest.TestProvider(t, justPods{p}, template())
		})
	}
}

// justPods is a provider without more than it needs.
type justPods struct{ provider.Provider }

// failing is a provider whose pods fail at once.
type failing struct{ justPods }

func (f failing) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	err := f.justPods.CreatePod(ctx, pod)
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "NoQuota", "ask for more"
	return err
}

// renaming is a provider that gives its pods UIDs of its own.
type renaming struct{ justPods }

func (r renaming) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	pod.UID = "mine"
	return r.justPods.CreatePod(ctx, pod)
}

// variable names the provider that a process of the test tests.
const variable = "PROVIDERTEST_PROVIDER"

// What can never succeed is a failure that says why, and not waited for.
func TestTestProvider_Fails(t *testing.T) {
	p := justPods{&memory{pods: map[string]*corev1.Pod{}}}
	switch os.Getenv(variable) {
	case "failing":
		providertest.TestProvider(t, failing{p}, template())
		return
	case "renaming":
		providertest.TestProvider(t, renaming{p}, template())
		return
	}
	for name, want := range map[string]string{
		"failing":  "is Failed (NoQuota: ask for more); pods of the template must run until they are deleted",
		"renaming": `has UID "mine", want`,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestTestProvider_Fails$")
		cmd.Env = append(os.Environ(), variable+"="+name)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(out), want)
	}
}
