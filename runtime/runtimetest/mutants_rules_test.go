package runtimetest

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Defects in rules that the CRI states beside its messages.
func mutantsOfRules() []mutant {
	const info = "answers have the extra information only if it is requested"
	return []mutant{
		{
			defect: "a timeout of 0 is the shortest", caseName: "a command without a timeout runs to its end", report: "timeout of 0, which is none",
			call: onCalls("ExecSync", func(c rpcCall) error {
				if c.req.(*v1.ExecSyncRequest).GetTimeout() == 0 {
					return status.Error(codes.DeadlineExceeded, "command timed out")
				}
				return c.next()
			}),
		},
		{
			defect: "measurements of containers have times in seconds", caseName: "a running container is measured", report: "cpu.timestamp is",
			response: onStats(func(s *v1.ContainerStats) { s.Cpu.Timestamp /= int64(time.Second) }),
		},
		{
			defect: "memory is measured with times in milliseconds", caseName: "a running container is measured", report: "memory.timestamp is",
			response: onStats(func(s *v1.ContainerStats) { s.Memory.Timestamp /= int64(time.Millisecond) }),
		},
		{
			defect: "an unknown pod has an empty measurement", caseName: "a pod is measured", report: "PodSandboxStats of an unknown pod: succeeded",
			call: losesErrors("PodSandboxStats"),
		},
		{
			defect: "each status of a container has the extra information", caseName: info, report: "info of the status of a container",
			request: onRequest(func(r *v1.ContainerStatusRequest) { r.Verbose = true }),
		},
		{
			defect: "each status of a pod has the extra information", caseName: info, report: "info of the status of a pod",
			request: onRequest(func(r *v1.PodSandboxStatusRequest) { r.Verbose = true }),
		},
		{
			defect: "a stream of containers ends with an empty response", caseName: "streamed containers are the listed containers", report: "StreamContainers sends a response without an item",
			response: onResponse(func(r *v1.StreamContainersResponse) { r.Containers = nil }),
		},
		{
			defect: "a stream of images ends with an empty response", caseName: "streamed images are the listed images", report: "StreamImages sends a response without an item",
			response: onResponse(func(r *v1.StreamImagesResponse) { r.Images = nil }),
		},
		{
			defect: "pods are not found by their id", caseName: "a pod keeps its labels and annotations", report: "ListPodSandbox with the id of a pod returns 0 pods",
			response: onResponse(func(r *v1.ListPodSandboxResponse) { r.Items = nil }),
		},
		{
			defect: "containers are not found by their id", caseName: "a container keeps its labels and annotations", report: "ListContainers with the id of a container returns 0 containers",
			response: onResponse(func(r *v1.ListContainersResponse) { r.Containers = nil }),
		},
		{
			defect: "the event of a removed pod has no pod", caseName: "sandbox events arrive in order", report: "the event CONTAINER_DELETED_EVENT of ",
			response: onEvent(evDeleted, func(e *v1.ContainerEventResponse) { e.PodSandboxStatus = nil }),
		},
	}
}
