package runtimetest

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func mutantsOfNode() []mutant {
	const name, ready = "the runtime reports its name and versions", "the runtime reports that it is ready"
	return []mutant{
		{
			defect: "the API version is that of an older CRI", caseName: name, report: "runtime_api_version is v1alpha2",
			response: onResponse(func(r *v1.VersionResponse) { r.RuntimeApiVersion = "v1alpha2" }),
		},
		{
			defect: "the runtime has no name", caseName: name, report: `name ""`,
			response: onResponse(func(r *v1.VersionResponse) { r.RuntimeName = "" }),
		},
		{
			defect: "the runtime has no version", caseName: name, report: `version ""`,
			response: onResponse(func(r *v1.VersionResponse) { r.RuntimeVersion = "" }),
		},
		{
			defect: "the condition RuntimeReady is missing", caseName: ready, report: "there is no condition RuntimeReady",
			response: onResponse(func(r *v1.StatusResponse) { r.Status.Conditions = r.Status.Conditions[1:] }),
		},
		{
			defect: "the condition NetworkReady is missing", caseName: ready, report: "there is no condition NetworkReady",
			response: onResponse(func(r *v1.StatusResponse) { r.Status.Conditions = r.Status.Conditions[:1] }),
		},
		{
			defect: "the network is never ready", caseName: ready, report: "NetworkReady is false",
			response: onResponse(func(r *v1.StatusResponse) { r.Status.Conditions[1].Status = false }),
		},
		{
			defect: "the status is empty", caseName: ready, report: "there is no condition RuntimeReady",
			response: onResponse(func(r *v1.StatusResponse) { r.Status = nil }),
		},
		{
			defect: "the cgroup driver has a number of its own", caseName: "the runtime reports its cgroup driver", report: "cgroup_driver of RuntimeConfig is 7",
			response: onResponse(func(r *v1.RuntimeConfigResponse) { r.Linux.CgroupDriver = 7 }),
		},
		{
			defect: "an unknown runtime handler is ignored", caseName: "an unknown runtime class is refused", report: "unknown runtime handler: succeeded",
			request: onRequest(func(r *v1.RunPodSandboxRequest) { r.RuntimeHandler = "" }),
		},
	}
}

func mutantsOfPods() []mutant {
	const identity, labels = "a pod is reported with its name, UID and attempt", "a pod keeps its labels and annotations"
	return []mutant{
		{
			defect: "the UID of a pod is lost in its status", caseName: identity, report: "status: uid",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Metadata.Uid = "" }),
		},
		{
			defect: "the attempt of a pod is lost in its status", caseName: identity, report: "status: attempt",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Metadata.Attempt = 0 }),
		},
		{
			defect: "the attempt of a pod is lost in lists", caseName: identity, report: "list: attempt",
			response: onPodItems(func(s *v1.PodSandbox) { s.Metadata.Attempt = 0 }),
		},
		{
			defect: "the UID of a pod is lost in lists", caseName: identity, report: "list: uid",
			response: onPodItems(func(s *v1.PodSandbox) { s.Metadata.Uid = "" }),
		},
		{
			defect: "the name of a pod has its namespace before it", caseName: identity, report: "status: name",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Metadata.Name = s.Metadata.Namespace + "_" + s.Metadata.Name }),
		},
		{
			defect: "labels of a pod are lost in its status", caseName: labels, report: "labels in the status",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Labels = nil }),
		},
		{
			defect: "annotations of a pod are lost in its status", caseName: labels, report: "annotations in the status",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Annotations = nil }),
		},
		{
			defect: "labels of a pod are lost in lists", caseName: labels, report: "labels in the list",
			response: onPodItems(func(s *v1.PodSandbox) { s.Labels = nil }),
		},
		{
			defect: "annotations of a pod are lost in lists", caseName: labels, report: "annotations in the list",
			response: onPodItems(func(s *v1.PodSandbox) { s.Annotations = nil }),
		},
		{
			defect: "annotations with line breaks are cut", caseName: labels, report: "annotations in the status",
			response: onPodStatus(func(s *v1.PodSandboxStatus) {
				for k, v := range s.GetAnnotations() {
					s.Annotations[k], _, _ = strings.Cut(v, "\n")
				}
			}),
		},
		{
			defect: "the runtime adds labels of its own to pods", caseName: labels, report: "labels in the status",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Labels["runtime/own"] = "x" }),
		},
		{
			defect: "list and status differ about the age of a pod", caseName: "a pod reports its creation time", report: "creation time in list and status",
			response: onPodItems(func(s *v1.PodSandbox) { s.CreatedAt += int64(time.Second) }),
		},
		{
			defect: "a pod is not ready right after RunPodSandbox", caseName: "a pod that was run is ready at once", report: "state in the status is SANDBOX_NOTREADY",
			response: func() func(string, proto.Message) {
				s := newTally()
				return onPodStatus(func(st *v1.PodSandboxStatus) {
					if s.count(st.GetId()) == 0 {
						st.State = notReady
					}
				})
			}(),
		},
		{
			defect: "pods are always listed as ready", caseName: "a pod that was stopped is never ready again", report: "state in the list is SANDBOX_READY",
			response: onPodItems(func(s *v1.PodSandbox) { s.State = ready }),
		},
		{
			defect: "a pod on the host's network does not say so", caseName: "a pod on the host's network is ready", report: "network namespace in the status",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Linux = nil }),
		},
		{
			defect: "a ready pod has no address", caseName: "a pod has an address", report: "no address",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Network = nil }),
		},
		{
			defect: "the address of a pod is that of its network", caseName: "a pod has an address", report: "is not an IP address",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Network.Ip += "/24" }),
		},
		{
			defect: "every pod has the same address", caseName: "pods have addresses of their own", report: "have the same address",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Network.Ip = "10.0.0.1" }),
		},
		{
			defect: "the status of a pod has another id", caseName: "a pod that was run is ready at once", report: "id in the status",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.Id = s.Id[:12] }),
		},
		{
			defect: "the pod of a runtime class does not name its handler", caseName: "a pod of a runtime class names its handler", report: "runtime_handler in the status",
			response: onPodStatus(func(s *v1.PodSandboxStatus) { s.RuntimeHandler = "" }),
		},
		{
			defect: "lists do not name the handler of a runtime class", caseName: "a pod of a runtime class names its handler", report: "runtime_handler in the list",
			response: onPodItems(func(s *v1.PodSandbox) { s.RuntimeHandler = "" }),
		},
		{
			defect: "the default handler is not reported", caseName: "the runtime reports its handlers", report: "the default handler",
			response: onResponse(func(r *v1.StatusResponse) { r.RuntimeHandlers = r.RuntimeHandlers[1:] }),
		},
		{
			defect: "a handler is reported twice", caseName: "the runtime reports its handlers", report: "twice",
			response: onResponse(func(r *v1.StatusResponse) { r.RuntimeHandlers = append(r.RuntimeHandlers, r.RuntimeHandlers[0]) }),
		},
	}
}

func mutantsOfPodLifecycles() []mutant {
	return []mutant{
		{
			defect: "StopPodSandbox does nothing", caseName: "a stopped pod is not ready", report: "state is SANDBOX_READY",
			call: doesNothing("StopPodSandbox"),
		},
		{
			defect: "a second stop of a pod fails", caseName: "a pod may be stopped again and again", report: "stop number 2",
			call: func() func(rpcCall) error {
				s := newTally()
				return refuses("StopPodSandbox", func(c rpcCall) bool { return s.count(c.req.(*v1.StopPodSandboxRequest).GetPodSandboxId()) == 1 })
			}(),
		},
		{
			defect: "stopping an unknown pod fails", caseName: "stopping a pod that is not there is no error", report: "stop unknown pod",
			call: refuses("StopPodSandbox", func(c rpcCall) bool {
				return c.req.(*v1.StopPodSandboxRequest).GetPodSandboxId() == unknownID
			}),
		},
		{
			defect: "removing an unknown pod fails", caseName: "removing a pod that is not there is no error", report: "remove unknown pod",
			call: refuses("RemovePodSandbox", func(c rpcCall) bool {
				return c.req.(*v1.RemovePodSandboxRequest).GetPodSandboxId() == unknownID
			}),
		},
		{
			defect: "a ready pod cannot be removed", caseName: "a ready pod can be removed without a stop", report: "remove ready pod",
			call: func() func(rpcCall) error {
				s := newTally()
				return func(c rpcCall) error {
					switch r := c.req.(type) {
					case *v1.StopPodSandboxRequest:
						s.count(r.GetPodSandboxId())
					case *v1.RemovePodSandboxRequest:
						if s.count(r.GetPodSandboxId()) == 0 {
							return status.Error(codes.FailedPrecondition, "stop it first")
						}
					}
					return c.next()
				}
			}(),
		},
		{
			defect: "removed pods stay in the status", caseName: "a removed pod is in neither list nor status", report: "status of a removed sandbox",
			call: doesNothing("RemovePodSandbox"),
		},
		{
			defect: "one pod can be run twice", caseName: "one name is one pod", report: "a second pod of the same name, uid and attempt: succeeded",
			request: func() func(any) {
				s := newTally()
				return onRequest(func(r *v1.RunPodSandboxRequest) {
					if m := r.GetConfig().GetMetadata(); m != nil {
						m.Uid += strings.Repeat("'", s.count(m.GetUid()))
					}
				})
			}(),
		},
		{
			defect: "the name of a removed pod stays reserved", caseName: "a removed pod's name is free", report: "run the pod again under its name",
			call: func() func(rpcCall) error {
				s := newTally()
				return refuses("RunPodSandbox", func(c rpcCall) bool {
					m := c.req.(*v1.RunPodSandboxRequest).GetConfig().GetMetadata()
					return s.count(m.GetUid()+m.GetName()+strconv.Itoa(int(m.GetAttempt()))) > 0
				})
			}(),
		},
		{
			defect: "a second attempt of a pod is refused", caseName: "a new attempt coexists with the dead one", report: "run pod p",
			call: func() func(rpcCall) error {
				s := newTally()
				return refuses("RunPodSandbox", func(c rpcCall) bool {
					return s.count(c.req.(*v1.RunPodSandboxRequest).GetConfig().GetMetadata().GetUid()) > 0
				})
			}(),
		},
		{
			defect: "pods are distinguished by name, not by UID", caseName: "pods of one name and different UIDs coexist", report: "run pod p",
			call: func() func(rpcCall) error {
				s := newTally()
				return refuses("RunPodSandbox", func(c rpcCall) bool {
					m := c.req.(*v1.RunPodSandboxRequest).GetConfig().GetMetadata()
					return s.count(m.GetNamespace()+"/"+m.GetName()) > 0
				})
			}(),
		},
		{
			defect: "containers of a stopped pod are reported as running", caseName: "stopping a pod ends its containers", report: "container state is CONTAINER_RUNNING",
			response: onStatus(func(st *v1.ContainerStatus) { st.State = running }),
		},
		{
			defect: "the end of a pod overwrites the exit codes of its containers", caseName: "stopping a pod leaves its containers to be read", report: "exit code after the pod was stopped is 137",
			call: func() func(rpcCall) error {
				s := newTally()
				return func(c rpcCall) error {
					err := c.next()
					if c.rpc == "StopPodSandbox" {
						s.count("stopped")
					} else if r, ok := c.resp.(*v1.ContainerStatusResponse); ok && s.count("asked") >= 0 && s.has("stopped") {
						r.Status.ExitCode = 137
					}
					return err
				}
			}(),
		},
		{
			defect: "stopping a pod removes its containers", caseName: "stopping a pod leaves its containers to be read", report: "status of container",
			call: onCalls("StopPodSandbox", func(c rpcCall) error {
				rs := v1.NewRuntimeServiceClient(c.conn)
				id := c.req.(*v1.StopPodSandboxRequest).GetPodSandboxId()
				list, err := rs.ListContainers(c.ctx, &v1.ListContainersRequest{Filter: &v1.ContainerFilter{PodSandboxId: id}})
				for _, item := range list.GetContainers() {
					_, _ = rs.RemoveContainer(c.ctx, &v1.RemoveContainerRequest{ContainerId: item.GetId()})
				}
				if err != nil {
					return err
				}
				return c.next()
			}),
		},
		{
			defect: "a stopped pod becomes ready again", caseName: "a pod that was stopped is never ready again", report: "state is SANDBOX_READY",
			response: func() func(string, proto.Message) {
				s := newTally()
				return onPodStatus(func(st *v1.PodSandboxStatus) {
					if st.GetState() == notReady && s.count(st.GetId()) >= 0 {
						st.State = ready
					}
				})
			}(),
		},
		{
			defect: "stopping a pod stops all pods", caseName: "stopping one pod leaves the others alone", report: "pod b is SANDBOX_NOTREADY",
			call: onCalls("StopPodSandbox", func(c rpcCall) error {
				rs := v1.NewRuntimeServiceClient(c.conn)
				list, err := rs.ListPodSandbox(c.ctx, &v1.ListPodSandboxRequest{})
				for _, p := range list.GetItems() {
					_, _ = rs.StopPodSandbox(c.ctx, &v1.StopPodSandboxRequest{PodSandboxId: p.GetId()})
				}
				return err
			}),
		},
		{
			defect: "a pod is not ready once a container has ended", caseName: "one container's end leaves the pod and the others alone", report: "pod is SANDBOX_NOTREADY",
			response: onResponse(func(r *v1.PodSandboxStatusResponse) {
				for _, st := range r.GetContainersStatuses() {
					if st.GetState() == exited {
						r.Status.State = notReady
					}
				}
			}),
		},
		{
			defect: "a pod without a name is run", caseName: "a pod without a name is refused and breaks nothing", report: "no config: succeeded",
			call: onCalls("RunPodSandbox", func(c rpcCall) error {
				if c.req.(*v1.RunPodSandboxRequest).GetConfig().GetMetadata() == nil {
					return nil
				}
				return c.next()
			}),
		},
	}
}
