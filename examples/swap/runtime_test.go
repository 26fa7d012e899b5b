package swap_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/runtime"
)

// countingRuntime counts the inspections of another Runtime. Unwrap keeps what that can
// do in addition, such as the removal of containers.
type countingRuntime struct {
	agent.Runtime
	inspections *counter
}

func (r countingRuntime) Unwrap() any { return r.Runtime }

func (r countingRuntime) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	r.inspections.add()
	return r.Runtime.Pod(ctx, uid)
}

func Example_runtimeDecorated() {
	var inspections counter
	runPod(agent.WithRuntimeFunc(func(c *agent.Components) (agent.Runtime, error) {
		rt, err := agent.NewRuntime(c)
		_, removes := runtime.Capability[runtime.ContainerRemover](countingRuntime{rt, &inspections})
		fmt.Println("removes containers:", removes)
		return countingRuntime{rt, &inspections}, err
	}))
	fmt.Println("inspections counted:", inspections.wasCalled())
	// Output:
	// removes containers: true
	// the pod runs
	// the pod is gone
	// inspections counted: true
}

// memoryRuntime only remembers what should run. It has no event stream: the PLEG lists
// its pods every second.
type memoryRuntime struct {
	mu   sync.Mutex
	pods map[types.UID]runtime.Pod
}

func (r *memoryRuntime) Status(context.Context) (runtime.Status, error) {
	return runtime.Status{Name: "memory", RuntimeReady: true, NetworkReady: true}, nil
}

func (r *memoryRuntime) Pods(context.Context) ([]runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.pods)), nil
}

func (r *memoryRuntime) Pod(_ context.Context, uid types.UID) (runtime.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[uid]
	p.ObservedAt = time.Now()
	return p, nil
}

func (r *memoryRuntime) Watch(context.Context, func(types.UID)) error { return runtime.ErrUnsupported }

func (r *memoryRuntime) Exec(context.Context, string, []string, time.Duration, int) ([]byte, int, error) {
	return nil, 0, runtime.ErrUnsupported
}

// Apply creates a sandbox and starts containers. Nothing in them ever exits.
func (r *memoryRuntime) Apply(_ context.Context, pod *corev1.Pod, plan []runtime.Action, _ runtime.RunOptions) runtime.ApplyResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[pod.UID]
	p.UID, p.Namespace, p.Name = pod.UID, pod.Namespace, pod.Name
	for _, a := range plan {
		switch a.Type {
		case runtime.CreateSandbox:
			p.Sandboxes = append(p.Sandboxes, runtime.Sandbox{ID: "sandbox of " + pod.Name, State: runtime.SandboxReady, Created: time.Now()})
		case runtime.StartContainer:
			p.Containers = append(p.Containers, runtime.Container{
				ID: a.Container + " of " + pod.Name, Name: a.Container, State: runtime.Running, SandboxID: p.Sandboxes[0].ID,
				Created: time.Now(), Started: time.Now(), Hash: runtime.HashContainer(runtime.ContainerSpec(pod, a.Container)),
			})
		}
	}
	r.pods[pod.UID] = p
	return runtime.ApplyResult{Changed: true}
}

func (r *memoryRuntime) Kill(_ context.Context, pod *corev1.Pod, _ runtime.Pod, _ runtime.Termination) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, pod.UID)
	return nil
}

func (r *memoryRuntime) Remove(context.Context, runtime.Pod) error { return nil } // Kill has done so

func Example_runtimeOwn() {
	runPodOn(agent.WithRuntime(&memoryRuntime{pods: map[types.UID]runtime.Pod{}}))
	// Output:
	// the pod runs
	// the pod is gone
}
