package runtimetest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// rewritesLogs changes the log of a container once it has exited.
func rewritesLogs(change func(line string) string) func(rpcCall) error {
	s := newTally()
	return onCalls("ContainerStatus", func(c rpcCall) error {
		err := c.next()
		st := c.resp.(*v1.ContainerStatusResponse).GetStatus()
		if st.GetState() != exited || s.count(st.GetId()) > 0 {
			return err
		}
		b, rerr := os.ReadFile(st.GetLogPath())
		if rerr != nil {
			return err
		}
		var out strings.Builder
		for line := range strings.Lines(string(b)) {
			out.WriteString(change(line))
		}
		_ = os.WriteFile(st.GetLogPath(), []byte(out.String()), 0o600)
		return err
	})
}

func mutantsOfLogs() []mutant {
	const tags, rotated = "output and errors are logged as such", "a log can be rotated without losing a line"
	return []mutant{
		{
			defect: "errors are logged as output", caseName: tags, report: "log: got",
			call: rewritesLogs(func(l string) string { return strings.Replace(l, " stderr ", " stdout ", 1) }),
		},
		{
			defect: "log lines have no time", caseName: tags, report: "does not begin with a time",
			call: rewritesLogs(func(l string) string { return l[strings.IndexByte(l, ' ')+1:] }),
		},
		{
			defect: "log lines have their time in seconds", caseName: tags, report: "does not begin with a time",
			call: rewritesLogs(func(l string) string { return "1700000000" + l[strings.IndexByte(l, ' '):] }),
		},
		{
			defect: "log lines have no stream", caseName: tags, report: "log: got",
			call: rewritesLogs(func(l string) string {
				return strings.Replace(strings.Replace(l, " stderr ", " ", 1), " stdout ", " ", 1)
			}),
		},
		{
			defect: "log lines have no tag", caseName: tags, report: "log: got",
			call: rewritesLogs(func(l string) string { return strings.Replace(l, " F ", " ", 1) }),
		},
		{
			defect: "standard error is not logged", caseName: tags, report: "log: got 1",
			call: rewritesLogs(func(l string) string {
				if strings.Contains(l, " stderr ") {
					return ""
				}
				return l
			}),
		},
		{
			defect: "the log is written after the exit is reported", caseName: "the log is complete when the exit is reported", report: "the log has []",
			call: func() func(rpcCall) error {
				s := newTally()
				return onCalls("ContainerStatus", func(c rpcCall) error {
					err := c.next()
					st := c.resp.(*v1.ContainerStatusResponse).GetStatus()
					if st.GetState() == exited && s.count(st.GetId()) == 0 {
						_ = os.Rename(st.GetLogPath(), st.GetLogPath()+".late")
					}
					return err
				})
			}(),
		},
		{
			defect: "all attempts have one log", caseName: "each attempt has its own log", report: "first log: got 2",
			request: onContainer(func(cfg *v1.ContainerConfig) {
				if cfg.GetMetadata() != nil {
					cfg.LogPath = filepath.Join(cfg.GetMetadata().GetName(), "0.log")
				}
			}),
		},
		{
			defect: "ReopenContainerLog does nothing", caseName: rotated, report: "the new log",
			call: doesNothing("ReopenContainerLog"),
		},
		{
			defect: "a reopened log stays empty", caseName: rotated, report: "the new log has 1 lines", runs: hostProcesses,
			call: onCalls("ReopenContainerLog", func(c rpcCall) error {
				r, err := v1.NewRuntimeServiceClient(c.conn).ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: c.req.(*v1.ReopenContainerLogRequest).GetContainerId()})
				if err != nil {
					return err
				}
				return os.WriteFile(r.GetStatus().GetLogPath(), nil, 0o600)
			}),
		},
		{
			defect: "the log is lost at its rotation", caseName: rotated, report: "both logs: got",
			call: onCalls("ReopenContainerLog", func(c rpcCall) error {
				r, err := v1.NewRuntimeServiceClient(c.conn).ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: c.req.(*v1.ReopenContainerLogRequest).GetContainerId()})
				if err == nil {
					_ = os.Truncate(r.GetStatus().GetLogPath()+".old", 0)
				}
				return c.next()
			}),
		},
		{
			defect: "reopening the log of an ended container makes a file", caseName: "a refused reopen makes no file", report: "the refused call made a log file",
			call: onCalls("ReopenContainerLog", func(c rpcCall) error {
				err := c.next()
				r, serr := v1.NewRuntimeServiceClient(c.conn).ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: c.req.(*v1.ReopenContainerLogRequest).GetContainerId()})
				if err != nil && serr == nil {
					_ = os.WriteFile(r.GetStatus().GetLogPath(), nil, 0o600)
				}
				return err
			}),
		},
		{
			defect: "logs go with the pod's stop", caseName: "the log stays until the container is removed", report: "log: got 0",
			call: onCalls("StopPodSandbox", func(c rpcCall) error {
				rs := v1.NewRuntimeServiceClient(c.conn)
				list, _ := rs.ListContainers(c.ctx, &v1.ListContainersRequest{Filter: &v1.ContainerFilter{PodSandboxId: c.req.(*v1.StopPodSandboxRequest).GetPodSandboxId()}})
				for _, it := range list.GetContainers() {
					st, _ := rs.ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: it.GetId()})
					_ = os.Remove(st.GetStatus().GetLogPath())
				}
				return c.next()
			}),
		},
		{
			defect: "a long line is logged without its end", caseName: "a long line is kept in parts", report: "has tag F", runs: hostProcesses,
			call: rewritesLogs(func(l string) string {
				if stamp, text, ok := strings.Cut(l, " stdout P "); ok {
					return stamp + " stdout F " + text[:1] + "\n"
				}
				return ""
			}),
		},
		{
			defect: "the parts of a long line are full lines", caseName: "a long line is kept in parts", report: "has tag F", runs: hostProcesses,
			call: rewritesLogs(func(l string) string { return strings.Replace(l, " stdout P ", " stdout F ", 1) }),
		},
		{
			defect: "long lines are cut", caseName: "a long line is kept in parts", report: "bytes of the line", runs: hostProcesses,
			executor: func(e embedded.Executor) embedded.Executor { return cuttingExecutor{e} },
		},
	}
}

func mutantsOfEventStreams() []mutant {
	const order = "container events arrive in order"
	lost := func(e *v1.ContainerEventResponse) { e.ContainerId = "" }
	kinds := map[v1.ContainerEventType]string{evCreated: "created", evStarted: "started", evStopped: "stopped", evDeleted: "deleted"}
	var out []mutant
	for _, kind := range []v1.ContainerEventType{evCreated, evStarted, evStopped} {
		out = append(out, mutant{
			defect: "there are no events of containers that were " + kinds[kind], caseName: order, report: "events are [",
			response: onEvent(kind, lost),
		})
	}
	return append(out, []mutant{
		{
			defect: "there are no events of containers that were deleted", caseName: order, report: "the event CONTAINER_DELETED_EVENT: did not happen",
			response: onEvent(evDeleted, lost),
		},
		{
			defect: "the types of events begin at 1", caseName: order, report: "events are [CONTAINER_STARTED_EVENT",
			response: onResponse(func(e *v1.ContainerEventResponse) { e.ContainerEventType++ }),
		},
		{
			defect: "starts and creations are mixed up", caseName: order, report: "events are [CONTAINER_STARTED_EVENT CONTAINER_CREATED_EVENT",
			response: onResponse(func(e *v1.ContainerEventResponse) {
				if e.ContainerEventType <= evStarted {
					e.ContainerEventType = evStarted - e.ContainerEventType
				}
			}),
		},
		{
			defect: "a crash is not reported", caseName: "a crash is reported at once", report: "the event CONTAINER_STOPPED_EVENT: did not happen",
			response: onEvent(evStopped, lost),
		},
		{
			defect: "a status is behind the event", caseName: "the status agrees with the event just received", report: "state right after the event",
			response: func() func(string, proto.Message) {
				s := newTally()
				return onStatus(func(st *v1.ContainerStatus) {
					if st.GetState() == exited && s.count(st.GetId()) == 0 {
						st.State = running
					}
				})
			}(),
		},
		{
			defect: "events name another sandbox", caseName: "an event carries its pod", report: "sandbox id",
			response: onResponse(func(e *v1.ContainerEventResponse) { e.PodSandboxStatus.Id = e.GetContainerId() }),
		},
		{
			defect: "the pod in events has no UID", caseName: "an event carries its pod", report: "uid",
			response: onResponse(func(e *v1.ContainerEventResponse) { e.PodSandboxStatus.Metadata.Uid = "" }),
		},
		{
			defect: "the statuses of an event are of its container only", caseName: "an event carries the statuses of the pod's containers", report: "lacks container",
			response: onResponse(func(e *v1.ContainerEventResponse) {
				e.ContainersStatuses = slices.DeleteFunc(e.ContainersStatuses, func(st *v1.ContainerStatus) bool { return st.GetId() != e.GetContainerId() })
			}),
		},
		{
			defect: "some events are lost when there are many", caseName: "events of many pods all arrive", report: "the event CONTAINER_STARTED_EVENT: did not happen",
			response: func() func(string, proto.Message) {
				s := newTally()
				return onEvent(evStarted, func(e *v1.ContainerEventResponse) {
					if s.count("event") >= 6 {
						e.ContainerId = ""
					}
				})
			}(),
		},
		{
			defect: "a reader takes the events of the others", caseName: "two readers receive the same events", report: "the event CONTAINER_STARTED_EVENT: did not happen",
			response: func() func(string, proto.Message) {
				s := newTally()
				return onEvent(evStarted, func(e *v1.ContainerEventResponse) {
					if s.count(e.GetContainerId()) > 0 {
						e.ContainerId = ""
					}
				})
			}(),
		},
		{
			defect: "an event stream that is not read holds everything up", caseName: "a reader that does not read blocks no client", report: "beside a stream that is not read",
			call: onCalls("StartContainer", func(c rpcCall) error {
				_ = sleep.For(c.ctx, 10*time.Second)
				return c.next()
			}),
		},
		{
			defect: "sandboxes that stop have no event", caseName: "sandbox events arrive in order", report: "the event CONTAINER_STOPPED_EVENT: did not happen",
			response: onEvent(evStopped, func(e *v1.ContainerEventResponse) {
				if e.GetContainerId() == e.GetPodSandboxStatus().GetId() {
					e.ContainerId = ""
				}
			}),
		},
	}...)
}
