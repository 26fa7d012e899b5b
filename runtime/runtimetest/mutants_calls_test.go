package runtimetest

import (
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/sleep"
)

// sticksAfterGivingUp makes an RPC take a second, and fails it for objects of which a call was
// given up meanwhile.
func sticksAfterGivingUp(rpc string, object func(rpcCall) string) func(rpcCall) error {
	s := newTally()
	return onCalls(rpc, func(c rpcCall) error {
		if s.has(object(c)) {
			return status.Error(codes.AlreadyExists, "reserved")
		}
		if err := sleep.For(c.ctx, time.Second); err != nil {
			s.count(object(c))
			return err
		}
		return c.next()
	})
}

// The objects that calls are about.
func podName(c rpcCall) string {
	return c.req.(*v1.RunPodSandboxRequest).GetConfig().GetMetadata().String()
}

func containerName(c rpcCall) string {
	r := c.req.(*v1.CreateContainerRequest)
	return r.GetPodSandboxId() + r.GetConfig().GetMetadata().String()
}

func objectID(c rpcCall) string {
	switch r := c.req.(type) {
	case interface{ GetPodSandboxId() string }:
		return r.GetPodSandboxId()
	case interface{ GetContainerId() string }:
		return r.GetContainerId()
	}
	return ""
}

func mutantsOfAbandonedCalls() []mutant {
	return []mutant{
		{
			defect: "the name of a pod whose making was given up stays reserved", caseName: "a pod whose making was given up can be made or found", report: "run or find the pod: still refused",
			call: sticksAfterGivingUp("RunPodSandbox", podName),
		},
		{
			defect: "the name of a container whose making was given up stays reserved", caseName: "a container whose making was given up can be made or found", report: "create or find the container: still refused",
			call: sticksAfterGivingUp("CreateContainer", containerName),
		},
		{
			defect: "a container whose start was given up is in no state", caseName: "a start that was given up leaves a definite state", report: "the container is made, running or ended, and can be removed: did not happen",
			call: func() func(rpcCall) error {
				s := newTally()
				return func(c rpcCall) error {
					if c.rpc == "StartContainer" {
						if err := sleep.For(c.ctx, time.Second); err != nil {
							s.count(objectID(c))
							return err
						}
					}
					err := c.next()
					if r, ok := c.resp.(*v1.ContainerStatusResponse); ok && err == nil && s.has(objectID(c)) {
						r.Status.State = v1.ContainerState_CONTAINER_UNKNOWN
					}
					return err
				}
			}(),
		},
		{
			defect: "a pod's stop that was given up blocks the next", caseName: "a pod's stop that was given up can be made again", report: "stop pod again: still refused",
			call: sticksAfterGivingUp("StopPodSandbox", objectID),
		},
		{
			defect: "a removal that was given up blocks the next", caseName: "a removal that was given up can be made again", report: "remove pod again: still refused",
			call: sticksAfterGivingUp("RemovePodSandbox", objectID),
		},
		{
			defect: "a container's removal that was given up blocks the next", caseName: "a container's removal that was given up can be made again", report: "remove container again: still refused",
			call: sticksAfterGivingUp("RemoveContainer", objectID),
		},
		{
			defect: "a stop waits for commands that were given up", caseName: "a command that was given up does not hold up the container's end", report: "the stop took",
			call: func() func(rpcCall) error {
				s := newTally()
				return func(c rpcCall) error {
					if c.rpc == "StopContainer" && s.has("given up") {
						_ = sleep.For(c.ctx, time.Minute)
					}
					err := c.next()
					if c.rpc == "ExecSync" && err != nil {
						s.count("given up")
					}
					return err
				}
			}(),
		},
		{
			defect: "a pull that was given up blocks the next", caseName: "a pull that was given up can be made again", report: "pull image again",
			call: sticksAfterGivingUp("PullImage", func(c rpcCall) string { return c.req.(*v1.PullImageRequest).GetImage().GetImage() }),
		},
		{
			defect: "a call fails before its deadline, with another code", caseName: "a call past its deadline fails with DeadlineExceeded", report: "code is Unknown, want DeadlineExceeded",
			call: onCalls("StopContainer", func(c rpcCall) error {
				if until, ok := c.ctx.Deadline(); ok {
					_ = sleep.For(c.ctx, time.Until(until)/2)
				}
				return status.Error(codes.Unknown, "context deadline exceeded")
			}),
		},
	}
}

func mutantsOfRaces() []mutant {
	return []mutant{
		{
			defect: "all of many calls for one pod succeed", caseName: "of many calls for one pod one wins", report: "calls that won is 6, want 1",
			call: repeatsAnswers("RunPodSandbox", podName, func(from, to any) {
				to.(*v1.RunPodSandboxResponse).PodSandboxId = from.(*v1.RunPodSandboxResponse).GetPodSandboxId()
			}),
		},
		{
			defect: "all of many calls for one container succeed", caseName: "of many calls for one container one wins", report: "calls that won is 6, want 1",
			call: repeatsAnswers("CreateContainer", containerName, func(from, to any) {
				to.(*v1.CreateContainerResponse).ContainerId = from.(*v1.CreateContainerResponse).GetContainerId()
			}),
		},
		{
			defect: "all of many starts of one container succeed", caseName: "of many starts of one container one wins", report: "starts that won is 6, want 1",
			call: losesErrors("StartContainer"),
		},
		{
			defect: "only the first of many stops succeeds", caseName: "many stops of one container all return", report: "stops that returned well is 1, want 6",
			call: refusesSecond("StopContainer", objectID),
		},
		{
			defect: "containers of a stopped pod are listed as running", caseName: "a pod can be stopped while its container starts", report: "no container runs in the stopped pod: did not happen",
			request: onRequest(func(r *v1.ListContainersRequest) {
				if r.GetFilter() != nil {
					r.Filter.State = nil
				}
			}),
		},
		{
			defect: "only the first removal of a pod succeeds", caseName: "a pod can be removed by many at once", report: "remove pod: still refused",
			call: refusesSecond("RemovePodSandbox", objectID),
		},
		{
			defect: "a list of containers is empty at times", caseName: "lists are complete while pods come and go", report: "the lasting container is missing from a list",
			call: func() func(rpcCall) error {
				s := newTally()
				return onCalls("ListContainers", func(c rpcCall) error {
					if s.count("list")%7 == 6 {
						return nil
					}
					return c.next()
				})
			}(),
		},
		{
			defect: "lists lack containers while a pod is removed", caseName: "lists are complete while pods come and go", report: "the lasting container is missing from a list",
			call: func() func(rpcCall) error {
				var removals atomic.Int32
				return func(c rpcCall) error {
					switch {
					case c.rpc == "RemovePodSandbox":
						removals.Add(1)
						defer removals.Add(-1)
						_ = sleep.For(c.ctx, 50*time.Millisecond)
					case c.rpc == "ListContainers" && removals.Load() > 0:
						return nil
					}
					return c.next()
				}
			}(),
		},
		{
			defect: "four pods at most can start", caseName: "many pods start at once", report: "pods that started is 4, want 8",
			call: func() func(rpcCall) error {
				s := newTally()
				return refuses("RunPodSandbox", func(rpcCall) bool { return s.count("run") >= 4 })
			}(),
		},
	}
}

// afterRestart changes calls after a restart, which in the harness is a call of Version.
func afterRestart(change func(rpcCall) error) func(rpcCall) error {
	s := newTally()
	return func(c rpcCall) error {
		if c.rpc == "Version" {
			s.count("restart")
		}
		if s.has("restart") {
			return change(c)
		}
		return c.next()
	}
}

func mutantsOfRestarts() []mutant {
	return []mutant{
		{
			defect: "a restart ends all containers", caseName: "containers outlive a restart of the runtime", report: "state is CONTAINER_EXITED",
			call: onCalls("Version", func(c rpcCall) error {
				rs := v1.NewRuntimeServiceClient(c.conn)
				list, _ := rs.ListContainers(c.ctx, &v1.ListContainersRequest{})
				for _, it := range list.GetContainers() {
					_, _ = rs.StopContainer(c.ctx, &v1.StopContainerRequest{ContainerId: it.GetId()})
				}
				return c.next()
			}),
		},
		{
			defect: "exit codes are lost in a restart", caseName: "exit codes outlive a restart of the runtime", report: "exit code is 0, want 5",
			call: afterRestart(func(c rpcCall) error {
				err := c.next()
				if r, ok := c.resp.(*v1.ContainerStatusResponse); ok && err == nil {
					r.Status.ExitCode = 0
				}
				return err
			}),
		},
		{
			defect: "names are free after a restart", caseName: "names stay taken over a restart of the runtime", report: "a second pod of the same name: succeeded",
			call: afterRestart(func(c rpcCall) error {
				if r, ok := c.req.(*v1.RunPodSandboxRequest); ok {
					r.Config.Metadata.Uid += "'"
				}
				return c.next()
			}),
		},
		{
			defect: "no command can be run after a restart", caseName: "pods can be used after a restart of the runtime", report: "exec: ",
			call: afterRestart(refuses("ExecSync", func(rpcCall) bool { return true })),
		},
	}
}

// searchForSleep is the command of findSleep.
var searchForSleep = regexp.MustCompile(`grep -x '\[(\d)\](\d+)'`)

func mutantsOfRemains() []mutant {
	return []mutant{
		{
			defect: "a second removal of a pod fails", caseName: "a pod may be removed again and again", report: "remove pod again",
			call: refusesSecond("RemovePodSandbox", objectID),
		},
		{
			defect: "stopping a pod frees its name", caseName: "a stopped pod keeps its name reserved", report: "a second pod of the same name, uid and attempt: succeeded",
			request: func() func(any) {
				s := newTally()
				return onRequest(func(r *v1.RunPodSandboxRequest) {
					m := r.GetConfig().GetMetadata()
					m.Uid += strings.Repeat("'", s.count(m.GetUid()))
				})
			}(),
		},
		{
			defect: "containers start in a stopped pod", caseName: "a stopped pod takes no more containers", report: "start of a container in a stopped pod: succeeded",
			call: doesNothing("StopPodSandbox"),
		},
		{
			defect: "a stopped pod has no status", caseName: "a stopped pod can be asked for its status", report: "status of pod p",
			call: onCalls("PodSandboxStatus", func(c rpcCall) error {
				err := c.next()
				if err == nil && c.resp.(*v1.PodSandboxStatusResponse).GetStatus().GetState() == notReady {
					return status.Error(codes.NotFound, "stopped")
				}
				return err
			}),
		},
		{
			defect: "a child of a container outlives it", caseName: "children of a container end with it", report: "a child of the stopped container still runs", runs: hostProcesses,
			call: onCalls("ExecSync", func(c rpcCall) error {
				if m := searchForSleep.FindStringSubmatch(strings.Join(c.req.(*v1.ExecSyncRequest).GetCmd(), " ")); m != nil {
					c.resp.(*v1.ExecSyncResponse).Stdout = []byte(m[1] + m[2] + "\n")
					return nil
				}
				return c.next()
			}),
		},
		{
			defect: "a container that exits at once exits before its start", caseName: "a container that exits at once is reported like any other", report: "times ",
			response: onStatus(func(st *v1.ContainerStatus) {
				if st.GetState() == exited {
					st.FinishedAt = st.GetStartedAt() - 1
				}
			}),
		},
		{
			defect: "limits of huge pages are refused", caseName: "a container starts with limits of huge pages", report: "create container c",
			call: refuses("CreateContainer", func(c rpcCall) bool {
				return len(c.req.(*v1.CreateContainerRequest).GetConfig().GetLinux().GetResources().GetHugepageLimits()) > 0
			}),
		},
		{
			defect: "the overhead of a pod is refused", caseName: "a pod with overhead starts", report: "run pod p",
			call: refuses("RunPodSandbox", func(c rpcCall) bool {
				return c.req.(*v1.RunPodSandboxRequest).GetConfig().GetLinux().GetOverhead() != nil
			}),
		},
	}
}

func mutantsOfRefusals() []mutant {
	const group, link, missing, output = "a group without a user is refused", "a link is mounted as what it leads to",
		"a mount of what is not there is refused", "the output of a command is bounded"
	return []mutant{
		{
			defect: "a user that the image does not have is ignored", caseName: "a user that the image does not have is refused", report: "run_as_username: a container", runs: isolatedProcesses,
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.RunAsUsername = "" }),
		},
		{
			defect: "a container's group without a user is ignored", caseName: group, report: "run_as_group: a container without",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.RunAsGroup = nil }),
		},
		{
			defect: "a pod's group without a user is ignored", caseName: group, report: "run_as_group: a pod without",
			request: onSandbox(func(l *v1.LinuxPodSandboxConfig) { l.GetSecurityContext().RunAsGroup = nil }),
		},
		{
			defect: "a link in a host path is not followed", caseName: link, report: "that a mounted link leads to", runs: isolatedProcesses,
			request: onMounts(func(m *v1.Mount) {
				if strings.HasSuffix(m.GetHostPath(), "/link") {
					m.HostPath = "/proc/self/task" // what is mounted is not the directory
				}
			}),
		},
		{
			defect: "a mount of what is not there is ignored", caseName: missing, report: "a path that does not exist: succeeded", runs: isolatedProcesses,
			request: onContainer(func(cfg *v1.ContainerConfig) {
				cfg.Mounts = slices.DeleteFunc(cfg.GetMounts(), func(m *v1.Mount) bool { return strings.HasSuffix(m.GetHostPath(), "/missing") })
			}),
		},
		{
			defect: "a host path that is not there is made", caseName: missing, report: "the path was made on the node", runs: isolatedProcesses,
			request: onMounts(func(m *v1.Mount) {
				if strings.HasSuffix(m.GetHostPath(), "/missing") {
					makeDir(m.GetHostPath())
				}
			}),
		},
		{
			defect: "the output of a command has no bound", caseName: output, report: "want 16 MiB at most", runs: hostProcesses,
			response: onResponse(func(r *v1.ExecSyncResponse) {
				if len(r.GetStdout()) > 1<<20 {
					r.Stdout = append(r.Stdout, make([]byte, 8<<20)...)
				}
			}),
		},
		{
			defect: "a command with too much output fails", caseName: output, report: "exec of a command that prints 20 MB", runs: hostProcesses,
			call: onCalls("ExecSync", func(c rpcCall) error {
				err := c.next()
				if len(c.resp.(*v1.ExecSyncResponse).GetStdout()) > 1<<20 {
					return status.Error(codes.ResourceExhausted, "message larger than max")
				}
				return err
			}),
		},
		{
			defect: "a command with too much output is killed", caseName: output, report: "exit code of a command that prints 20 MB", runs: hostProcesses,
			response: onResponse(func(r *v1.ExecSyncResponse) {
				if len(r.GetStdout()) > 1<<20 {
					r.ExitCode = 137
				}
			}),
		},
	}
}
