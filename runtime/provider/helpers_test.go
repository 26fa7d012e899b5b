package provider_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// memory is a Provider whose pods exist in memory. A hook replaces the call of that name.
type memory struct {
	mu    sync.Mutex
	pods  map[string]*corev1.Pod // by namespace/name
	calls []string
	hooks map[string]func(ctx context.Context, pod *corev1.Pod) error
}

func newMemory() *memory {
	return &memory{pods: map[string]*corev1.Pod{}, hooks: map[string]func(context.Context, *corev1.Pod) error{}}
}

// errHandled is what a hook returns that has made the call itself.
var errHandled = errors.New("handled")

func unlessHandled(err error) error {
	if errors.Is(err, errHandled) {
		return nil
	}
	return err
}

// on sets the hook of a call; nil: none.
func (m *memory) on(call string, hook func(ctx context.Context, pod *corev1.Pod) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hooks[call] = hook
}

// begin records a call and returns its hook.
func (m *memory) begin(ctx context.Context, call string, pod *corev1.Pod) error {
	m.mu.Lock()
	text := call
	if pod != nil {
		text += " " + pod.Name
	}
	m.calls = append(m.calls, text)
	hook := m.hooks[call]
	m.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(ctx, pod)
}

// called returns the calls but those of GetPods and GetPod, and forgets them.
func (m *memory) called() (calls []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		if c != "GetPods" && c != "GetPod" {
			calls = append(calls, c)
		}
	}
	m.calls = nil
	return calls
}

func (m *memory) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	if err := m.begin(ctx, "CreatePod", pod); err != nil {
		return unlessHandled(err)
	}
	m.set(pod, corev1.PodRunning)
	return nil
}

func (m *memory) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	if err := m.begin(ctx, "DeletePod", pod); err != nil {
		return unlessHandled(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := pod.Namespace + "/" + pod.Name
	if m.pods[key] == nil {
		return fmt.Errorf("pod %s: %w", key, runtime.ErrNotFound)
	}
	delete(m.pods, key)
	return nil
}

func (m *memory) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	if err := m.begin(ctx, "GetPods", nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var pods []*corev1.Pod
	for _, pod := range m.pods {
		pods = append(pods, pod.DeepCopy())
	}
	return pods, nil
}

// set stores a pod in a phase.
func (m *memory) set(pod *corev1.Pod, phase corev1.PodPhase) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stored := pod.DeepCopy()
	stored.Status = corev1.PodStatus{
		Phase: phase, PodIP: "10.0.0.1",
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: "example.org/Warm", Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: true, Image: "job", ContainerID: "vm://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	if phase != corev1.PodRunning {
		stored.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
	}
	m.pods[pod.Namespace+"/"+pod.Name] = stored
}

// remove loses a pod.
func (m *memory) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, "default/"+name)
}

// get returns a stored pod, or nil.
func (m *memory) get(name string) *corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods["default/"+name].DeepCopy()
}

// updating is a memory that can update pods.
type updating struct{ *memory }

func (u updating) UpdatePod(ctx context.Context, pod *corev1.Pod) error {
	if err := u.begin(ctx, "UpdatePod", pod); err != nil {
		return err
	}
	u.set(pod, corev1.PodRunning)
	return nil
}

// getting is a memory that finds single pods.
type getting struct{ *memory }

func (g getting) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if err := g.begin(ctx, "GetPod", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pods[namespace+"/"+name], nil
}

// notifying is a memory that reports changes.
type notifying struct {
	*memory
	notify func(*corev1.Pod)
}

func (n *notifying) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notify = notify
}

func newTestPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "job"}}},
	}
}
