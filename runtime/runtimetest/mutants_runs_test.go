package runtimetest

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/sleep"
)

func mutantsOfStarts() []mutant {
	return []mutant{
		{
			defect: "a running container has an end time", caseName: "a started container is reported as running", report: "end time of a running container",
			response: onStatus(func(st *v1.ContainerStatus) { st.FinishedAt = st.CreatedAt }),
		},
		{
			defect: "lists show a running container as created", caseName: "a started container is reported as running", report: "state in the list is CONTAINER_CREATED",
			response: onItems(func(it *v1.Container) { it.State = created }),
		},
		{
			defect: "StartContainer does nothing", caseName: "a started container is reported as running", report: "state in the status is CONTAINER_CREATED",
			call: doesNothing("StartContainer"),
		},
		{
			defect: "a running container can be started again", caseName: "a running container cannot be started again", report: "second start: succeeded",
			call: losesErrors("StartContainer"),
		},
		{
			defect: "an ended container can be started again", caseName: "an ended container cannot be started again", report: "start of an ended container: succeeded",
			call: losesErrors("StartContainer"),
		},
		{
			defect: "a start that fails is reported as done", caseName: "a command that is not there fails the start", report: "start of a program that is not there: succeeded",
			call: losesErrors("StartContainer"),
		},
		{
			defect: "a container whose start failed is reported as running", caseName: "a command that is not there fails the start", report: "the container is reported as running",
			response: onStatus(func(st *v1.ContainerStatus) {
				if st.GetReason() == embeddedStartError {
					st.State = running
				}
			}),
		},
		{
			defect: "the start of an unknown container is an internal error", caseName: "a container that was not made cannot be started", report: "failed with code Internal, want [NotFound]",
			call: changesCode("StartContainer", codes.NotFound, codes.Internal),
		},
		{
			defect: "a second attempt is refused while the first one is there", caseName: "the next attempt starts beside the dead one", report: "create container c",
			call: refusesSecond("CreateContainer", func(c rpcCall) string {
				r := c.req.(*v1.CreateContainerRequest)
				return r.GetPodSandboxId() + r.GetConfig().GetMetadata().GetName()
			}),
		},
		{
			defect: "a pod has room for one container", caseName: "containers of a pod start side by side", report: "start container b",
			call: func() func(rpcCall) error {
				s := newTally()
				return refuses("StartContainer", func(rpcCall) bool { return s.count("start") > 0 })
			}(),
		},
		{
			defect: "args are ignored", caseName: "a container starts with arguments", report: `the log has "stdout F one two three"`,
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.Args = nil }),
		},
		{
			defect: "envs are ignored", caseName: "a container has its environment", report: `the log has "stdout F 1 2|x=`, runs: hostProcesses,
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.Envs = nil }),
		},
		{
			defect: "the value of a variable ends at its first =", caseName: "a container has its environment", report: `the log has "stdout F 1 2|x=`, runs: hostProcesses,
			request: onContainer(func(cfg *v1.ContainerConfig) {
				for _, e := range cfg.GetEnvs() {
					before, _, _ := strings.Cut(string(e.GetValue()), "=")
					e.Value = []byte(before)
				}
			}),
		},
		{
			defect: "working_dir is ignored", caseName: "a container starts in its working directory", report: `the log has "stdout F /tmp"`, runs: hostProcesses,
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.WorkingDir = "" }),
		},
	}
}

// embeddedStartError is the reason of the embedded runtime for a failed start.
const embeddedStartError = "StartError"

func mutantsOfEnds() []mutant {
	const completed, failed, stable = "a container that exits with 0 is reported as Completed",
		"a failed container is reported with its exit code", "the status of an exited container does not change"
	return []mutant{
		{
			defect: "a container that exited well has no reason", caseName: completed, report: "reason is ",
			response: onStatus(func(st *v1.ContainerStatus) { st.Reason = "" }),
		},
		{
			defect: "every exit is an error", caseName: completed, report: "reason is Error, want Completed",
			response: onStatus(func(st *v1.ContainerStatus) { st.Reason = "Error" }),
		},
		{
			defect: "an exited container has no end time", caseName: completed, report: "finished 0",
			response: onStatus(func(st *v1.ContainerStatus) { st.FinishedAt = 0 }),
		},
		{
			defect: "the start time is lost at the exit", caseName: completed, report: "started 0",
			response: onStatus(func(st *v1.ContainerStatus) {
				if st.GetState() == exited {
					st.StartedAt = 0
				}
			}),
		},
		{
			defect: "end times are of another time zone", caseName: completed, report: "finished in the future",
			response: onStatus(func(st *v1.ContainerStatus) { st.FinishedAt += int64(2 * time.Hour) }),
		},
		{
			defect: "finished_at of containers is in seconds", caseName: completed, report: "finished ",
			response: onStatus(func(st *v1.ContainerStatus) { st.FinishedAt /= int64(time.Second) }),
		},
		{
			defect: "lists show an exited container as running", caseName: completed, report: "state in the list is CONTAINER_RUNNING",
			response: onItems(func(it *v1.Container) {
				if it.GetState() == exited {
					it.State = running
				}
			}),
		},
		{
			defect: "the exit code is lost", caseName: failed, report: "exit code is 0, want 42",
			response: onStatus(func(st *v1.ContainerStatus) { st.ExitCode = 0 }),
		},
		{
			defect: "every failure has exit code 1", caseName: failed, report: "exit code is 1, want 42",
			response: onStatus(func(st *v1.ContainerStatus) { st.ExitCode = min(st.GetExitCode(), 1) }),
		},
		{
			defect: "the exit code is the wait status of the system", caseName: failed, report: "exit code is 10752, want 42",
			response: onStatus(func(st *v1.ContainerStatus) { st.ExitCode <<= 8 }),
		},
		{
			defect: "a failure has no reason", caseName: failed, report: "reason is ",
			response: onStatus(func(st *v1.ContainerStatus) { st.Reason = "" }),
		},
		{
			defect: "an exit is never noticed", caseName: failed, report: "the exit of the container: did not happen",
			response: onStatus(func(st *v1.ContainerStatus) {
				if st.GetState() == exited {
					st.State = running
				}
			}),
		},
		{
			defect: "the end time of an exited container is now", caseName: stable, report: "end time is",
			response: onStatus(func(st *v1.ContainerStatus) {
				if st.GetState() == exited {
					st.FinishedAt = time.Now().UnixNano()
				}
			}),
		},
		{
			defect: "exit codes are forgotten after the first answer", caseName: stable, report: "exit code is 0, want 9",
			response: func() func(string, proto.Message) {
				s := newTally()
				return onStatus(func(st *v1.ContainerStatus) {
					if st.GetState() == exited && s.count(st.GetId()) > 0 {
						st.ExitCode = 0
					}
				})
			}(),
		},
		{
			defect: "out of memory is reported as an error", caseName: "a container over its memory limit is reported as OOMKilled", report: "reason is Error, want OOMKilled",
			response: onStatus(func(st *v1.ContainerStatus) { st.Reason = "Error" }),
		},
		{
			defect: "out of memory has exit code 1", caseName: "a container over its memory limit is reported as OOMKilled", report: "exit code is 1, want 137",
			response: onStatus(func(st *v1.ContainerStatus) { st.ExitCode = min(st.GetExitCode(), 1) }),
		},
		{
			defect: "RemoveContainer does nothing", caseName: "an exited container can be removed", report: "status of a removed container: succeeded",
			call: doesNothing("RemoveContainer"),
		},
	}
}

func mutantsOfStops() []mutant {
	const grace = "a container that does not end is killed after its grace period"
	return []mutant{
		{
			defect: "the grace period is taken for milliseconds", caseName: grace, report: "before its grace period of 3s",
			request: onRequest(func(r *v1.StopContainerRequest) { r.Timeout /= 1000 }),
		},
		{
			defect: "every grace period is 10s at least", caseName: grace, report: "for a grace period of 3s",
			request: onRequest(func(r *v1.StopContainerRequest) { r.Timeout = max(r.GetTimeout(), 10) }),
		},
		{
			defect: "a stop always reports that it killed", caseName: "a container can end by itself within its grace period", report: "the exit code it chose is 137",
			response: onStatus(func(st *v1.ContainerStatus) {
				if st.GetState() == exited {
					st.ExitCode = 137
				}
			}),
		},
		{
			defect: "a stop waits for the whole grace period", caseName: "a container can end by itself within its grace period", report: "the stop took",
			call: onCalls("StopContainer", func(c rpcCall) error {
				_ = sleep.For(c.ctx, time.Duration(c.req.(*v1.StopContainerRequest).GetTimeout())*time.Second)
				return c.next()
			}),
		},
		{
			defect: "a stop does not wait for the end", caseName: "a stop returns when the container has ended", report: "state in the status is CONTAINER_RUNNING",
			call: func() func(rpcCall) error {
				return onCalls("StopContainer", func(c rpcCall) error {
					time.AfterFunc(time.Second, func() {
						c.ctx = context.WithoutCancel(c.ctx)
						_ = c.next() // the runtime may have been closed
					})
					return nil
				})
			}(),
		},
		{
			defect: "a second stop of a container fails", caseName: "a container may be stopped again and again", report: "stop container",
			call: refusesSecond("StopContainer", func(c rpcCall) string { return c.req.(*v1.StopContainerRequest).GetContainerId() }),
		},
		{
			defect: "stopping an ended container fails", caseName: "stopping an ended container changes nothing", report: "stop ended container",
			call: refuses("StopContainer", func(c rpcCall) bool { return c.stateOf(c.req.(*v1.StopContainerRequest).GetContainerId()) == exited }),
		},
		{
			defect: "stopping an ended container changes its exit code", caseName: "stopping an ended container changes nothing", report: "exit code is 137, want 4",
			call: func() func(rpcCall) error {
				s := newTally()
				return func(c rpcCall) error {
					err := c.next()
					if c.rpc == "StopContainer" {
						s.count("stopped")
					} else if r, ok := c.resp.(*v1.ContainerStatusResponse); ok && s.has("stopped") {
						r.Status.ExitCode = 137
					}
					return err
				}
			}(),
		},
		{
			defect: "stopping a container that never ran fails", caseName: "stopping a container that never ran is no error", report: "stop created container",
			call: refuses("StopContainer", func(c rpcCall) bool { return c.stateOf(c.req.(*v1.StopContainerRequest).GetContainerId()) == created }),
		},
		{
			defect: "stopping an unknown container fails", caseName: "stopping a container that is not there is no error", report: "stop unknown container",
			call: refuses("StopContainer", func(c rpcCall) bool { return c.req.(*v1.StopContainerRequest).GetContainerId() == unknownID }),
		},
		{
			defect: "stops of a container queue up", caseName: "a second stop can shorten the grace period", report: "the second stop, with a grace period of 1s, took",
			call: func() func(rpcCall) error {
				slot := make(chan struct{}, 1)
				return onCalls("StopContainer", func(c rpcCall) error {
					slot <- struct{}{}
					defer func() { <-slot }()
					return c.next()
				})
			}(),
		},
		{
			defect: "a stop that was given up kills", caseName: "a stop that was given up does not kill early", report: "state in the status is CONTAINER_EXITED",
			call: onCalls("StopContainer", func(c rpcCall) error {
				err := c.next()
				if err != nil { // which may be before the end of c.ctx, at the same instant
					c.ctx = context.WithoutCancel(c.ctx)
					c.req = &v1.StopContainerRequest{ContainerId: c.req.(*v1.StopContainerRequest).GetContainerId()}
					_ = c.next() // its result has no reader
				}
				return err
			}),
		},
		{
			defect: "a stop that was given up holds up the next", caseName: "a stop that was given up can be made again", report: "stop again",
			call: refusesSecond("StopContainer", func(c rpcCall) string { return c.req.(*v1.StopContainerRequest).GetContainerId() }),
		},
		{
			defect: "a stop locks the container", caseName: "a container's status can be read while it stops", report: "the status took",
			call: func() func(rpcCall) error {
				var mu sync.Mutex
				stopping := make(chan struct{})
				close(stopping)
				return func(c rpcCall) error {
					mu.Lock()
					wait := stopping
					if c.rpc == "StopContainer" {
						end := make(chan struct{})
						stopping = end
						defer close(end)
					}
					mu.Unlock()
					<-wait
					return c.next()
				}
			}(),
		},
		{
			defect: "a running container cannot be removed", caseName: "a running container can be removed by force", report: "remove running container",
			call: refuses("RemoveContainer", func(c rpcCall) bool { return c.stateOf(c.req.(*v1.RemoveContainerRequest).GetContainerId()) == running }),
		},
		{
			defect: "removing an unknown container fails", caseName: "removing a container that is not there is no error", report: "remove unknown container",
			call: refuses("RemoveContainer", func(c rpcCall) bool { return c.req.(*v1.RemoveContainerRequest).GetContainerId() == unknownID }),
		},
		{
			defect: "the stop signal of a container is ignored", caseName: "the stop signal of the container is used", report: "the exit code of its SIGUSR1 handler", runs: hostProcesses,
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.StopSignal = 0 }),
		},
		{
			defect: "the stop signal of an image is ignored", caseName: "the stop signal of the image is used", report: "the exit code of its handler of USR1", runs: hostProcesses,
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.StopSignal = v1.Signal_SIGNAL_SIGTERM }),
		},
		{
			defect: "the grace period begins with SIGKILL", caseName: "a container can end by itself within its grace period", report: "the exit code it chose is 137",
			request: onRequest(func(r *v1.StopContainerRequest) { r.Timeout = 0 }),
		},
	}
}

// unknownCodes are the RPCs whose errors for unknown objects must be NotFound.
func mutantsOfErrors() []mutant {
	var out []mutant
	for _, c := range [][3]string{
		{"PodSandboxStatus", "unknown ids are NotFound", "status of an unknown pod"},
		{"ContainerStatus", "unknown ids are NotFound", "status of an unknown container"},
		{"ExecSync", "a command in a container that is not there is refused", "exec in an unknown container"},
		{"ReopenContainerLog", "the log of a container that is not there cannot be reopened", "reopen of an unknown container's log"},
		{"ContainerStats", "a container that is not there is not measured", "stats of an unknown container"},
		{"UpdateContainerResources", "resources of a container that is not there cannot be changed", "update of an unknown container"},
	} {
		out = append(out, mutant{
			defect: "an unknown object is not NotFound for " + c[0], caseName: c[1], report: c[2] + ": failed with code Unknown, want [NotFound]",
			call: changesCode(c[0], codes.NotFound, codes.Unknown),
		})
	}
	return append(out, mutant{
		defect: "a deadline is reported as an internal error", caseName: "a command past its timeout fails with DeadlineExceeded", report: "code is Unknown, want DeadlineExceeded",
		call: onCalls("ExecSync", func(c rpcCall) error {
			err := c.next()
			if err != nil {
				return status.Error(codes.Unknown, "command timed out")
			}
			return nil
		}),
	})
}
