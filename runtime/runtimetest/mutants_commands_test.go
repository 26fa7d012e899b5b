package runtimetest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func mutantsOfLists() []mutant {
	const podsByLabels, containersByLabels = "pods are found by all labels of a selector", "containers are found by labels"
	return []mutant{
		{
			defect: "lists of pods ignore the id", caseName: "pods are found by id", report: "pods is 2, want 1",
			request: onRequest(func(r *v1.ListPodSandboxRequest) { withoutID(r.GetFilter()) }),
		},
		{
			defect: "lists of pods ignore the state", caseName: "pods are found by state", report: "SANDBOX_READY: got 2",
			request: onRequest(func(r *v1.ListPodSandboxRequest) {
				if r.GetFilter() != nil {
					r.Filter.State = nil
				}
			}),
		},
		{
			defect: "lists of pods take one label for all", caseName: podsByLabels, report: "pods is 2, want 1",
			request: onRequest(func(r *v1.ListPodSandboxRequest) {
				if f := r.GetFilter(); f.GetLabelSelector()[runLabel] != "" {
					f.LabelSelector = map[string]string{runLabel: f.LabelSelector[runLabel]}
				}
			}),
		},
		{
			defect: "lists of pods ignore labels that no pod has", caseName: podsByLabels, report: "pods with a label that none has",
			request: onRequest(func(r *v1.ListPodSandboxRequest) { delete(r.GetFilter().GetLabelSelector(), "none") }),
		},
		{
			defect: "nothing found is everything found", caseName: "a filter that nothing meets gives an empty list", report: "pods is 1, want 0",
			request: onRequest(func(r *v1.ListPodSandboxRequest) {
				if r.GetFilter().GetId() == unknownID {
					r.Filter = nil
				}
			}),
		},
		{
			defect: "lists of containers ignore the pod", caseName: "containers are found by pod", report: "containers of pod a: got 3",
			request: onRequest(func(r *v1.ListContainersRequest) {
				if r.GetFilter() != nil {
					r.Filter.PodSandboxId = ""
				}
			}),
		},
		{
			defect: "lists of containers ignore the state", caseName: "containers are found by state", report: "CONTAINER_CREATED: got 3",
			request: onRequest(func(r *v1.ListContainersRequest) {
				if r.GetFilter() != nil {
					r.Filter.State = nil
				}
			}),
		},
		{
			defect: "lists of containers have only running ones by default", caseName: "a list without a filter has all", report: "is missing",
			response: onResponse(func(r *v1.ListContainersResponse) {
				r.Containers = slices.DeleteFunc(r.Containers, func(it *v1.Container) bool { return it.GetState() == created })
			}),
		},
		{
			defect: "lists of containers ignore labels", caseName: containersByLabels, report: "containers: got 2",
			request: onRequest(func(r *v1.ListContainersRequest) {
				if r.GetFilter() != nil {
					r.Filter.LabelSelector = nil
				}
			}),
		},
		{
			defect: "parts of a filter are alternatives", caseName: "all parts of a filter count together", report: "containers of b in pod a is 1",
			request: onRequest(func(r *v1.ListContainersRequest) {
				if r.GetFilter().GetId() != "" {
					r.Filter.PodSandboxId = ""
				}
			}),
		},
		{
			defect: "a list loses its last pod", caseName: "a list without a filter has all", report: "pods is 1, want 2",
			response: onResponse(func(r *v1.ListPodSandboxResponse) { r.Items = r.Items[:max(0, len(r.Items)-1)] }),
		},
		{
			defect: "a list has ten pods at most", caseName: "many pods with long annotations can be listed", report: "pods: got 10",
			response: onResponse(func(r *v1.ListPodSandboxResponse) { r.Items = r.Items[:min(10, len(r.Items))] }),
		},
		{
			defect: "long annotations are cut", caseName: "many pods with long annotations can be listed", report: "length of the annotation",
			response: onPodItems(func(it *v1.PodSandbox) {
				if blob, ok := it.GetAnnotations()["sublet.dev/blob"]; ok {
					it.Annotations["sublet.dev/blob"] = blob[:4096]
				}
			}),
		},
		{
			defect: "list and status name the image differently", caseName: "list and status agree", report: "image_ref",
			response: onItems(func(it *v1.Container) { it.ImageRef = it.GetImage().GetImage() }),
		},
		{
			defect: "list and status differ about the age of a container", caseName: "list and status agree", report: "creation time",
			response: onItems(func(it *v1.Container) { it.CreatedAt++ }),
		},
		{
			defect: "the stream of pods loses the last one", caseName: "streamed pods are the listed pods", report: "streamed pods: got",
			response: onResponse(func(r *v1.StreamPodSandboxesResponse) { r.PodSandboxes = r.PodSandboxes[:len(r.PodSandboxes)-1] }),
		},
		{
			defect: "the stream of pods ignores its filter", caseName: "streams of lists heed their filters", report: "StreamPodSandboxes by id",
			request: onRequest(func(r *v1.StreamPodSandboxesRequest) { r.Filter = nil }),
		},
		{
			defect: "the stream of containers ignores its filter", caseName: "streams of lists heed their filters", report: "StreamContainers by pod",
			request: onRequest(func(r *v1.StreamContainersRequest) { r.Filter = nil }),
		},
		{
			defect: "the stream of measurements ignores its filter", caseName: "streams of lists heed their filters", report: "StreamContainerStats by pod",
			request: onRequest(func(r *v1.StreamContainerStatsRequest) { r.Filter = nil }),
		},
		{
			defect: "the stream of pod measurements ignores its filter", caseName: "streams of lists heed their filters", report: "StreamPodSandboxStats by id",
			request: onRequest(func(r *v1.StreamPodSandboxStatsRequest) { r.Filter = nil }),
		},
		{
			defect: "the stream of images ignores its filter", caseName: "a stream of images heeds its filter", report: "StreamImages by name",
			request: onRequest(func(r *v1.StreamImagesRequest) { r.Filter = nil }),
		},
		{
			defect: "the stream of images loses some", caseName: "streamed images are the listed images", report: "streamed images: got",
			response: onResponse(func(r *v1.StreamImagesResponse) { r.Images = r.Images[1:] }),
		},
		{
			defect: "the stream of containers is empty", caseName: "streamed containers are the listed containers", report: "streamed containers: got 0",
			response: onResponse(func(r *v1.StreamContainersResponse) { r.Containers = nil }),
		},
	}
}

func withoutID(f *v1.PodSandboxFilter) {
	if f != nil {
		f.Id = ""
	}
}

func mutantsOfCommands() []mutant {
	const timeout = "a command that takes too long is ended"
	return []mutant{
		{
			defect: "a failed command is an error of the call", caseName: "a command that fails returns its exit code", report: "exec: ",
			call: onCalls("ExecSync", func(c rpcCall) error {
				err := c.next()
				if err == nil && c.resp.(*v1.ExecSyncResponse).GetExitCode() != 0 {
					return status.Error(codes.Unknown, "command failed")
				}
				return err
			}),
		},
		{
			defect: "commands always exit with 0", caseName: "a command that fails returns its exit code", report: "exit code is 0, want 3",
			response: onResponse(func(r *v1.ExecSyncResponse) { r.ExitCode = 0 }),
		},
		{
			defect: "the output of a command is lost", caseName: "a command that succeeds returns exit code 0", report: "output is ",
			response: onResponse(func(r *v1.ExecSyncResponse) { r.Stdout = nil }),
		},
		{
			defect: "errors of a command are in its output", caseName: "output and errors of a command are kept apart", report: "stdout is ",
			response: onResponse(func(r *v1.ExecSyncResponse) { r.Stdout, r.Stderr = append(r.Stdout, r.Stderr...), nil }),
		},
		{
			defect: "errors of a command are lost", caseName: "output and errors of a command are kept apart", report: "stderr is ",
			response: onResponse(func(r *v1.ExecSyncResponse) { r.Stderr = nil }),
		},
		{
			defect: "the timeout of a command is ignored", caseName: timeout, report: "it took",
			request: onRequest(func(r *v1.ExecSyncRequest) {
				if r.GetTimeout() == 1 {
					r.Timeout = 90
				}
			}),
		},
		{
			defect: "a command past its timeout succeeds", caseName: timeout, report: "a command past its timeout: succeeded",
			call: losesErrors("ExecSync"),
		},
		{
			defect: "a command past its timeout kills the container", caseName: timeout, report: "state in the status is CONTAINER_EXITED",
			call: onCalls("ExecSync", func(c rpcCall) error {
				err := c.next()
				if err != nil {
					_, _ = v1.NewRuntimeServiceClient(c.conn).StopContainer(context.WithoutCancel(c.ctx), &v1.StopContainerRequest{ContainerId: c.req.(*v1.ExecSyncRequest).GetContainerId()})
				}
				return err
			}),
		},
		{
			defect: "commands run one by one", caseName: "commands run side by side", report: "ended before five short ones",
			call: func() func(rpcCall) error {
				slot := make(chan struct{}, 1)
				return onCalls("ExecSync", func(c rpcCall) error {
					slot <- struct{}{}
					defer func() { <-slot }()
					return c.next()
				})
			}(),
		},
		{
			defect: "a command in an ended container succeeds", caseName: "a command in an ended container is refused", report: "exec in an ended container: succeeded",
			call: losesErrors("ExecSync"),
		},
		{
			defect: "a command in a created container succeeds", caseName: "a command in a container that never ran is refused", report: "exec in a created container: succeeded",
			call: losesErrors("ExecSync"),
		},
		{
			defect: "a command that is not there succeeds", caseName: "a command that is not there does not succeed", report: "exec of a program that is not there succeeded",
			response: onResponse(func(r *v1.ExecSyncResponse) { r.ExitCode = 0 }),
			call:     losesErrors("ExecSync"),
		},
		{
			defect: "a command runs in the first container", caseName: "a command runs in its own container", report: "the environment of container", runs: hostProcesses,
			call: func() func(rpcCall) error {
				var mu sync.Mutex
				first := ""
				return func(c rpcCall) error {
					mu.Lock()
					if r, ok := c.req.(*v1.StartContainerRequest); ok && first == "" {
						first = r.GetContainerId()
					}
					if r, ok := c.req.(*v1.ExecSyncRequest); ok {
						r.ContainerId = first
					}
					mu.Unlock()
					return c.next()
				}
			}(),
		},
		{
			defect: "a command is passed to a shell", caseName: "a command gets its arguments as they are", report: "output of echo",
			request: onRequest(func(r *v1.ExecSyncRequest) { r.Cmd = []string{"sh", "-c", strings.Join(r.GetCmd(), " ")} }),
		},
		{
			defect: "the output of a command ends at 64 KiB", caseName: "much output is not lost", report: "bytes of output is 65536", runs: hostProcesses,
			response: onResponse(func(r *v1.ExecSyncResponse) { r.Stdout = r.Stdout[:min(len(r.Stdout), 64<<10)] }),
		},
		{
			defect: "a command has no environment", caseName: "a command has the container's environment", report: "output is ", runs: hostProcesses,
			request: onRequest(func(r *v1.ExecSyncRequest) { r.Cmd = append([]string{"env", "-i"}, r.GetCmd()...) }),
		},
	}
}
