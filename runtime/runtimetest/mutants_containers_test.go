package runtimetest

import (
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func mutantsOfContainers() []mutant {
	const identity, labels = "a container is reported with its name and attempt", "a container keeps its labels and annotations"
	return []mutant{
		{
			defect: "a container runs as soon as it is made", caseName: "a container that was made does not run yet", report: "state in the status is CONTAINER_RUNNING",
			call: onCalls("CreateContainer", func(c rpcCall) error {
				err := c.next()
				if err == nil {
					_, err = v1.NewRuntimeServiceClient(c.conn).StartContainer(c.ctx, &v1.StartContainerRequest{ContainerId: c.resp.(*v1.CreateContainerResponse).GetContainerId()})
				}
				return err
			}),
		},
		{
			defect: "a made container has a start time", caseName: "a container that was made does not run yet", report: "start time is",
			response: onStatus(func(st *v1.ContainerStatus) { st.StartedAt = st.CreatedAt }),
		},
		{
			defect: "the name of a container has its pod before it", caseName: identity, report: "name is",
			response: onStatus(func(st *v1.ContainerStatus) { st.Metadata.Name = "p_" + st.Metadata.Name }),
		},
		{
			defect: "the attempt of a container is lost in its status", caseName: identity, report: "attempt is 0",
			response: onStatus(func(st *v1.ContainerStatus) { st.Metadata.Attempt = 0 }),
		},
		{
			defect: "the attempt of a container is lost in lists", caseName: identity, report: "attempt in the list is 0",
			response: onItems(func(it *v1.Container) { it.Metadata.Attempt = 0 }),
		},
		{
			defect: "lists do not name the pod of a container", caseName: identity, report: "pod of the container",
			response: onItems(func(it *v1.Container) { it.PodSandboxId = "" }),
		},
		{
			defect: "labels of a container are lost in its status", caseName: labels, report: "labels in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.Labels = nil }),
		},
		{
			defect: "annotations of a container are lost in its status", caseName: labels, report: "annotations in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.Annotations = nil }),
		},
		{
			defect: "labels of a container are lost in lists", caseName: labels, report: "labels in the list",
			response: onItems(func(it *v1.Container) { it.Labels = nil }),
		},
		{
			defect: "annotations of a container are lost in lists", caseName: labels, report: "annotations in the list",
			response: onItems(func(it *v1.Container) { it.Annotations = nil }),
		},
		{
			defect: "a container can be created twice", caseName: "one name and attempt is one container", report: "a second container of the same name and attempt: succeeded",
			request: func() func(any) {
				s := newTally()
				return onContainer(func(cfg *v1.ContainerConfig) {
					if m := cfg.GetMetadata(); m != nil {
						m.Attempt += uint32(s.count(cfg.GetLabels()["io.kubernetes.pod.uid"] + m.GetName()))
					}
				})
			}(),
		},
		{
			defect: "the name of a removed container stays reserved", caseName: "a removed container's name is free", report: "create container c",
			call: refusesSecond("CreateContainer", func(c rpcCall) string {
				r := c.req.(*v1.CreateContainerRequest)
				return r.GetPodSandboxId() + r.GetConfig().GetMetadata().String()
			}),
		},
		{
			defect: "names of containers are reserved over all pods", caseName: "one container name in two pods is two containers", report: "create container c",
			call: refusesSecond("CreateContainer", func(c rpcCall) string { return c.req.(*v1.CreateContainerRequest).GetConfig().GetMetadata().String() }),
		},
		{
			defect: "a refused create reserves the name", caseName: "a refused create leaves nothing behind", report: "create container with the right image",
			call: refusesSecond("CreateContainer", func(c rpcCall) string { return c.req.(*v1.CreateContainerRequest).GetConfig().GetMetadata().String() }),
		},
		{
			defect: "a container of a missing image is made", caseName: "a refused create leaves nothing behind", report: "a container of an image that is not there: succeeded",
			call: losesErrors("CreateContainer"),
		},
		{
			defect: "image_ref is the name that was asked for, with another tag", caseName: "a container names its image by the image's id", report: "no image is known by the container's image_ref",
			response: onStatus(func(st *v1.ContainerStatus) { st.ImageRef = "docker.io/library/busybox:other" }),
		},
		{
			defect: "image_ref names another image", caseName: "a container names its image by the image's id", report: "image behind image_ref",
			response: onStatus(func(st *v1.ContainerStatus) { st.ImageRef = "example.com/second:1" }),
		},
		{
			defect: "image_id is missing in the status", caseName: "a container carries its image's id", report: "image_id in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.ImageId = "" }),
		},
		{
			defect: "image_id is missing in lists", caseName: "a container carries its image's id", report: "image_id in the list",
			response: onItems(func(it *v1.Container) { it.ImageId = "" }),
		},
		{
			defect: "the log path is relative", caseName: "a container reports its log path", report: "log path is",
			response: onStatus(func(st *v1.ContainerStatus) { st.LogPath = "c/0.log" }),
		},
		{
			defect: "the log path is missing", caseName: "a container reports its log path", report: "log path is",
			response: onStatus(func(st *v1.ContainerStatus) { st.LogPath = "" }),
		},
		{
			defect: "mounts are not reported", caseName: "a container reports its mounts", report: "is not in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.Mounts = nil }),
		},
		{
			defect: "mounts are reported without their host path", caseName: "a container reports its mounts", report: "is not in the status",
			response: onStatus(func(st *v1.ContainerStatus) {
				for _, m := range st.GetMounts() {
					m.HostPath = ""
				}
			}),
		},
		{
			defect: "the stop signal is not reported", caseName: "a container reports its stop signal", report: "stop_signal in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.StopSignal = 0 }),
		},
		{
			defect: "the user that was set is not the one that is reported", caseName: "a container reports the user that it was given", report: "user.linux.uid in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.User.Linux.Uid = 0 }),
		},
		{
			defect: "the group that was set is not the one that is reported", caseName: "a container reports the user that it was given", report: "user.linux.gid in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.User.Linux.Gid = 0 }),
		},
		{
			defect: "supplemental groups are not reported", caseName: "a container reports the user that it was given", report: "user.linux.supplemental_groups in the status",
			response: onStatus(func(st *v1.ContainerStatus) { st.User.Linux.SupplementalGroups = nil }),
		},
		{
			defect: "a container that never ran cannot be removed", caseName: "a container that was never started can be removed", report: "remove created container",
			call: refuses("RemoveContainer", func(c rpcCall) bool {
				return c.stateOf(c.req.(*v1.RemoveContainerRequest).GetContainerId()) == created
			}),
		},
		{
			defect: "a container without an image is made", caseName: "a container without a name or image is refused and breaks nothing", report: "no image: succeeded",
			call: onCalls("CreateContainer", func(c rpcCall) error {
				if c.req.(*v1.CreateContainerRequest).GetConfig().GetImage() == nil {
					return nil
				}
				return c.next()
			}),
		},
		{
			defect: "a container is made in any pod", caseName: "a container cannot be made in a pod that is not there", report: "create in an unknown pod: succeeded",
			call: losesErrors("CreateContainer"),
		},
	}
}

// refusesSecond fails an RPC for the second request with the same key.
func refusesSecond(rpc string, key func(rpcCall) string) func(rpcCall) error {
	s := newTally()
	return refuses(rpc, func(c rpcCall) bool { return s.count(key(c)) > 0 })
}
