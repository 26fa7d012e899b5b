package runtime

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// PodResources are what the containers of a pod get together, without the overhead of the
// pod. A container without a limit adds nothing to that of the pod, as with a kubelet's sandbox: a virtual machine
// that they share has to be as large as the limits of the others.
type PodResources struct {
	CPURequest  int64 // millicores
	CPULimit    int64 // millicores; 0: none
	MemoryLimit int64 // bytes; 0: none
}

// PodResourcesOf returns the resources of a pod by its spec. It is pure.
func PodResourcesOf(pod *corev1.Pod) PodResources {
	bare := *pod
	bare.Spec.Overhead = nil
	requests, limits := podspec.Requests(&bare), podspec.LimitSum(&bare)
	cpu, memory := limits[corev1.ResourceCPU], limits[corev1.ResourceMemory]
	request, ok := requests[corev1.ResourceCPU]
	if !ok {
		request = cpu
	}
	return PodResources{CPURequest: max(request.MilliValue(), 0), CPULimit: max(cpu.MilliValue(), 0), MemoryLimit: max(memory.Value(), 0)}
}

// RaisedTo returns the greater of each resource: what the pod has while it is resized from r to
// desired.
func (r PodResources) RaisedTo(desired PodResources) PodResources {
	limit := func(a, b int64) int64 {
		if a == 0 || b == 0 {
			return 0
		}
		return max(a, b)
	}
	return PodResources{max(r.CPURequest, desired.CPURequest), limit(r.CPULimit, desired.CPULimit), limit(r.MemoryLimit, desired.MemoryLimit)}
}

// PodResourcesUpdater is the capability of a runtime that has a use for the resources of a pod
// as a whole, as for the size of a virtual machine. It gets those of a new pod with its sandbox.
type PodResourcesUpdater interface {
	// UpdatePodResources announces other resources of a pod in place: those that become more
	// before its cgroup and containers get them, and those that become less after its containers
	// have and before its cgroup has. An error is a rejection: the pod keeps what it has, with
	// the resize in progress and the error in its status, and the next sync repeats the call. pod
	// is read-only.
	UpdatePodResources(ctx context.Context, pod *corev1.Pod, sandboxID string, r PodResources) error
}
