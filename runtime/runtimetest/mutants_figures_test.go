package runtimetest

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// onImage returns a mutation of the statuses of images.
func onImage(mutate func(*v1.Image)) func(string, proto.Message) {
	return onResponse(func(r *v1.ImageStatusResponse) {
		if r.GetImage() != nil {
			mutate(r.Image)
		}
	})
}

func mutantsOfImages() []mutant {
	const there, names = "an image that was pulled is there", "an image is found by each of its names"
	return []mutant{
		{
			defect: "images have no id", caseName: there, report: "it has no id",
			response: onImage(func(i *v1.Image) { i.Id = "" }),
		},
		{
			defect: "images have no size", caseName: there, report: "its size is 0",
			response: onImage(func(i *v1.Image) { i.Size = 0 }),
		},
		{
			defect: "images have no names", caseName: there, report: "it has no name",
			response: onImage(func(i *v1.Image) { i.RepoTags, i.RepoDigests = nil, nil }),
		},
		{
			defect: "a pulled image is not in the list", caseName: there, report: "it is not in the list",
			response: onResponse(func(r *v1.ListImagesResponse) { r.Images = nil }),
		},
		{
			defect: "a pull returns the name it was given", caseName: "a pull gives the image's id", report: "image_ref of the pull",
			response: onResponse(func(r *v1.PullImageResponse) { r.ImageRef = "docker.io/library/busybox:1.36" }),
		},
		{
			defect: "each pull gives a new id", caseName: "pulling an image again gives the same image", report: "image_ref",
			response: func() func(string, proto.Message) {
				s := newTally()
				return onResponse(func(r *v1.PullImageResponse) {
					r.ImageRef += strconv.Itoa(s.count("pull"))
				})
			}(),
		},
		{
			defect: "images are not found by digest", caseName: names, report: "by name ",
			call: onCalls("ImageStatus", func(c rpcCall) error {
				if slices.Contains([]byte(c.req.(*v1.ImageStatusRequest).GetImage().GetImage()), '@') {
					return nil
				}
				return c.next()
			}),
		},
		{
			defect: "images are not found by id", caseName: names, report: "by name sha256:",
			call: onCalls("ImageStatus", func(c rpcCall) error {
				if len(c.req.(*v1.ImageStatusRequest).GetImage().GetImage()) == len("sha256:")+64 {
					return nil
				}
				return c.next()
			}),
		},
		{
			defect: "a missing image is an error", caseName: "an image that is not there has no status, and no error", report: "status of image example.invalid",
			call: onCalls("ImageStatus", func(c rpcCall) error {
				err := c.next()
				if strings.HasPrefix(c.req.(*v1.ImageStatusRequest).GetImage().GetImage(), "example.invalid/") {
					return status.Error(codes.NotFound, "no such image")
				}
				return err
			}),
		},
		{
			defect: "a missing image has an empty status", caseName: "an image that is not there has no status, and no error", report: "it has a status",
			response: onResponse(func(r *v1.ImageStatusResponse) {
				if r.GetImage() == nil {
					r.Image = &v1.Image{}
				}
			}),
		},
		{
			defect: "lists of images ignore their filter", caseName: "a list can be asked for one image", report: "images is 2, want 1",
			request: onRequest(func(r *v1.ListImagesRequest) { r.Filter = nil }),
		},
		{
			defect: "a malformed name is pulled", caseName: "an invalid image name is refused", report: "pull of a malformed name: succeeded",
			call: losesErrors("PullImage"),
		},
		{
			defect: "removing an unknown image fails", caseName: "removing an image that is not there is no error", report: "remove unknown image",
			call: onCalls("RemoveImage", func(rpcCall) error { return status.Error(codes.NotFound, "no such image") }),
		},
		{
			defect: "RemoveImage does nothing", caseName: "a removed image is gone and can be pulled again", report: "it is still there",
			call: doesNothing("RemoveImage"),
		},
		{
			defect: "removing an image kills its containers", caseName: "a running container outlives its image", report: "state in the status is CONTAINER_EXITED",
			call: onCalls("RemoveImage", func(c rpcCall) error {
				rs := v1.NewRuntimeServiceClient(c.conn)
				list, _ := rs.ListContainers(c.ctx, &v1.ListContainersRequest{})
				for _, it := range list.GetContainers() {
					_, _ = rs.StopContainer(c.ctx, &v1.StopContainerRequest{ContainerId: it.GetId()})
				}
				return c.next()
			}),
		},
		{
			defect: "the image file system is not reported", caseName: "the image file system is measured", report: "there is none",
			response: onResponse(func(r *v1.ImageFsInfoResponse) { r.ImageFilesystems = nil }),
		},
		{
			defect: "the image file system has no mount point", caseName: "the image file system is measured", report: `mount point ""`,
			response: onResponse(func(r *v1.ImageFsInfoResponse) { r.ImageFilesystems[0].FsId = nil }),
		},
		{
			defect: "the use of the image file system is not reported", caseName: "the image file system is measured", report: "used_bytes is missing",
			response: onResponse(func(r *v1.ImageFsInfoResponse) { r.ImageFilesystems[0].UsedBytes = nil }),
		},
		{
			defect: "the inodes of the image file system are not reported", caseName: "the image file system is measured", report: "inodes_used is missing",
			response: onResponse(func(r *v1.ImageFsInfoResponse) { r.ImageFilesystems[0].InodesUsed = nil }),
		},
		{
			defect: "verbose answers are like the others", caseName: "verbose answers have more information", report: "info of the verbose status",
			response: onResponse(func(r *v1.ContainerStatusResponse) { r.Info = nil }),
		},
	}
}

// onStats returns a mutation of the measurements of one container.
func onStats(mutate func(*v1.ContainerStats)) func(string, proto.Message) {
	return onResponse(func(r *v1.ContainerStatsResponse) { mutate(r.Stats) })
}

// onPodStats returns a mutation of the measurements of one pod.
func onPodStats(mutate func(*v1.PodSandboxStats)) func(string, proto.Message) {
	return onResponse(func(r *v1.PodSandboxStatsResponse) { mutate(r.Stats) })
}

func mutantsOfFigures() []mutant {
	const one, pod, update = "a running container is measured", "a pod is measured", "resources can be changed while it runs"
	return []mutant{
		{
			defect: "a measurement has another id", caseName: one, report: "id is ",
			response: onStats(func(s *v1.ContainerStats) { s.Attributes.Id = s.Attributes.Id[:12] }),
		},
		{
			defect: "a measurement has no name", caseName: one, report: "name is ",
			response: onStats(func(s *v1.ContainerStats) { s.Attributes.Metadata = nil }),
		},
		{
			defect: "a measurement has no time", caseName: one, report: "cpu.timestamp is 0",
			response: onStats(func(s *v1.ContainerStats) { s.Cpu.Timestamp = 0 }),
		},
		{
			defect: "memory in use is not measured", caseName: one, report: "the container is measured: did not happen",
			response: onStats(func(s *v1.ContainerStats) { s.Memory.WorkingSetBytes = nil }),
		},
		{
			defect: "the writable layer is not measured", caseName: one, report: "writable_layer.used_bytes is missing",
			response: onStats(func(s *v1.ContainerStats) { s.WritableLayer = nil }),
		},
		{
			defect: "processor time is that since the last call", caseName: "processor time only grows", report: "from ",
			response: func() func(string, proto.Message) {
				last := uint64(0)
				return onStats(func(s *v1.ContainerStats) {
					v := s.Cpu.UsageCoreNanoSeconds.Value
					s.Cpu.UsageCoreNanoSeconds.Value = 10_000_000_000 - v + last
				})
			}(),
		},
		{
			defect: "measurements are of all pods", caseName: "measurements are found by pod and container", report: "by pod: got 3",
			request: onRequest(func(r *v1.ListContainerStatsRequest) { r.Filter.PodSandboxId = "" }),
		},
		{
			defect: "measurements are of all containers", caseName: "measurements are found by pod and container", report: "by container: got",
			request: onRequest(func(r *v1.ListContainerStatsRequest) { r.Filter.Id = "" }),
		},
		{
			defect: "the measurement of a pod has another id", caseName: pod, report: "id is ",
			response: onPodStats(func(s *v1.PodSandboxStats) { s.Attributes.Id = "" }),
		},
		{
			defect: "the measurement of a pod has no UID", caseName: pod, report: "uid is ",
			response: onPodStats(func(s *v1.PodSandboxStats) { s.Attributes.Metadata.Uid = "" }),
		},
		{
			defect: "measurements of pods ignore their filter", caseName: pod, report: "pods in the list",
			request: onRequest(func(r *v1.ListPodSandboxStatsRequest) { r.Filter = nil }),
		},
		{
			defect: "the measurement of a pod has no containers", caseName: "a pod's measurement is that of its containers", report: "linux.containers of the measurement",
			response: onPodStats(func(s *v1.PodSandboxStats) { s.Linux.Containers = nil }),
		},
		{
			defect: "the processor time of a pod is not measured", caseName: "a pod's measurement is that of its containers", report: "linux.cpu.usage_core_nano_seconds is missing",
			response: onPodStats(func(s *v1.PodSandboxStats) { s.Linux.Cpu = nil }),
		},
		{
			defect: "the memory of a pod is not measured", caseName: "a pod's measurement is that of its containers", report: "linux.memory.working_set_bytes is missing",
			response: onPodStats(func(s *v1.PodSandboxStats) { s.Linux.Memory = nil }),
		},
		{
			defect: "one pod's end fails the measurement of all", caseName: "measuring while pods come and go is no error", report: "list stats: ",
			call: onCalls("ListContainerStats", func(c rpcCall) error {
				err := c.next()
				list, _ := v1.NewRuntimeServiceClient(c.conn).ListContainers(c.ctx, &v1.ListContainersRequest{})
				if len(list.GetContainers()) == 0 || slices.ContainsFunc(list.GetContainers(), func(it *v1.Container) bool { return it.GetState() != running }) {
					return status.Error(codes.NotFound, "a container has ended")
				}
				return err
			}),
		},
		{
			defect: "UpdateContainerResources does nothing", caseName: update, report: "memory limit in the status",
			call: doesNothing("UpdateContainerResources"),
		},
		{
			defect: "an update of resources resets the others", caseName: "a change of one resource leaves the others", report: "cpu_quota in the status",
			call: onCalls("UpdateContainerResources", func(c rpcCall) error {
				r := c.req.(*v1.UpdateContainerResourcesRequest)
				r.Linux.CpuQuota = 1
				return c.next()
			}),
		},
		{
			defect: "resources are not reported", caseName: "a container reports its resources", report: "memory limit in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.Resources = nil }),
		},
		{
			defect: "CPU resources are not reported", caseName: "a container reports its resources", report: "cpu_quota in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.Resources.Linux.CpuQuota, st.Resources.Linux.CpuShares = 0, 0 }),
		},
		{
			defect: "resources of a pod cannot be updated", caseName: "the resources of a pod can be changed", report: "update resources of pod",
			call: onCalls("UpdatePodSandboxResources", func(rpcCall) error { return status.Error(codes.Internal, "no cgroup") }),
		},
		{
			defect: "resources of an unknown pod are updated", caseName: "the resources of a pod can be changed", report: "update of an unknown pod: succeeded",
			call: losesErrors("UpdatePodSandboxResources"),
		},
		{
			defect: "the pod CIDR of a node is refused", caseName: "the runtime takes the node's pod CIDR", report: "update the runtime's configuration",
			call: onCalls("UpdateRuntimeConfig", func(rpcCall) error { return status.Error(codes.Internal, "no") }),
		},
		{
			defect: "metrics have no descriptors", caseName: "metrics of pods are described", report: "no descriptor",
			response: onResponse(func(r *v1.ListMetricDescriptorsResponse) { r.Descriptors = r.Descriptors[1:] }),
		},
		{
			defect: "no metric has a descriptor", caseName: "metrics of pods are described", report: "no descriptor",
			response: onResponse(func(r *v1.ListMetricDescriptorsResponse) { r.Descriptors = nil }),
		},
		{
			defect: "metrics have fewer labels than their descriptors", caseName: "metrics of pods are described", report: "label_values",
			response: onResponse(func(r *v1.ListMetricDescriptorsResponse) {
				for _, d := range r.GetDescriptors() {
					d.LabelKeys = append(d.LabelKeys, "more")
				}
			}),
		},
		{
			defect: "a pod has no metrics", caseName: "metrics of pods are described", report: "there are no metrics of the pod",
			response: onResponse(func(r *v1.ListPodSandboxMetricsResponse) { r.PodMetrics = nil }),
		},
		{
			defect: "the metrics of a pod have no containers", caseName: "metrics of pods are described", report: "there are no metrics of the container",
			response: onResponse(func(r *v1.ListPodSandboxMetricsResponse) {
				for _, p := range r.GetPodMetrics() {
					p.ContainerMetrics = nil
				}
			}),
		},
		{
			defect: "metrics have times in seconds", caseName: "metrics of pods are described", report: "want 0 or nanoseconds since 1970",
			response: onResponse(func(r *v1.ListPodSandboxMetricsResponse) {
				for _, p := range r.GetPodMetrics() {
					for _, m := range p.GetContainerMetrics() {
						m.Metrics[0].Timestamp /= int64(time.Second)
					}
				}
			}),
		},
		{
			defect: "streamed metrics are not the listed ones", caseName: "streamed metrics are the listed metrics", report: "streamed metrics: got",
			response: onResponse(func(r *v1.StreamPodSandboxMetricsResponse) { r.PodSandboxMetrics = r.PodSandboxMetrics[1:] }),
		},
	}
}
