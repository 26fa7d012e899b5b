package runtimetest

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// mutant is the embedded runtime with one defect that the suite must find.
type mutant struct {
	defect   string // named as a sentence about the runtime
	caseName string // the case that finds it
	report   string // what the failure says about it, among others

	runs     executorKind
	isSlow   bool                                 // takes as long for pods and containers as runtimes of containers do
	request  func(req any)                        // changes what reaches the runtime
	response func(rpc string, resp proto.Message) // changes what it returns, and its events
	call     func(rpcCall) error                  // answers calls instead of it
	executor func(embedded.Executor) embedded.Executor
}

type executorKind int

const (
	simulation executorKind = iota
	hostProcesses
	isolatedProcesses // they need root
)

func mutants() []mutant {
	return slices.Concat(mutantsOfNode(), mutantsOfPods(), mutantsOfPodLifecycles(), mutantsOfContainers(), mutantsOfStarts(), mutantsOfEnds(), mutantsOfStops(),
		mutantsOfErrors(), mutantsOfLists(), mutantsOfCommands(), mutantsOfLogs(), mutantsOfEventStreams(), mutantsOfStreams(), mutantsOfImages(), mutantsOfFigures(), mutantsOfRuntime(), mutantsOfIsolation(), mutantsOfProcesses(), mutantsOfStatuses(), mutantsOfEvents(), mutantsOfStats(), mutantsOfEquipment(),
		mutantsOfAbandonedCalls(), mutantsOfRaces(), mutantsOfRestarts(), mutantsOfRemains(), mutantsOfRefusals(), mutantsOfRules())
}

func TestRuntime_FindsDefects(t *testing.T) {
	for _, m := range mutants() {
		t.Run(m.defect, func(t *testing.T) {
			skipUnlessRuns(t, m.runs)
			t.Parallel()
			m.requireFound(t)
		})
	}
}

// A case that finds a defect of the embedded runtime finds it in one that is as slow as runtimes of containers.
func TestRuntime_FindsDefectsOfSlowRuntimes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes with the race detector, and is the same for all users")
	}
	for _, m := range mutants() {
		if m.runs != simulation {
			continue // its time is real
		}
		t.Run(m.defect, func(t *testing.T) {
			t.Parallel()
			m.isSlow = true
			m.requireFound(t)
		})
	}
}

func skipUnlessRuns(t *testing.T, kind executorKind) {
	t.Helper()
	if kind == isolatedProcesses && os.Geteuid() != 0 {
		t.Skip("needs root: mounts are made in namespaces")
	}
	if testing.Short() {
		t.Skip("hundreds of them take minutes with the race detector, and what they prove of the suite is the same for all users")
	}
}

// requireFound requires that the case of the mutant finds it.
func (m mutant) requireFound(t *testing.T) {
	t.Helper()
	tc, ok := find(m.caseName)
	require.True(t, ok, "case not found")
	c := m.run(t, tc)
	require.Empty(t, c.skip)
	require.NotEmpty(t, c.failures, "the suite does not find the defect")
	assert.Contains(t, strings.Join(c.failures, "\n"), m.report)
}

// Without a defect the harness of the mutants passes all their cases.
func TestRuntime_FindsNoDefectsInTheMutantsHarness(t *testing.T) {
	for _, tc := range cases() {
		i := slices.IndexFunc(mutants(), func(m mutant) bool { return m.caseName == tc.name })
		if i < 0 {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			runs := mutants()[i].runs
			skipUnlessRuns(t, runs)
			t.Parallel()
			c := mutant{runs: runs}.run(t, tc)
			assert.Empty(t, c.failures)
			assert.Empty(t, c.skip)
		})
	}
}

func mutantsOfRuntime() []mutant {
	return []mutant{
		{
			defect: "version is not the one that kubelets require", caseName: "the runtime reports its name and versions", report: "version, which kubelets compare",
			response: onResponse(func(r *v1.VersionResponse) { r.Version = "9.9.9" }),
		},
		{
			defect: "the cgroup driver is missing", caseName: "the runtime reports its cgroup driver", report: "linux.cgroup_driver is missing",
			response: onResponse(func(r *v1.RuntimeConfigResponse) { r.Linux = nil }),
		},
		{
			defect: "the exec URL is dead", caseName: "a command can be run with streams", report: "does not answer at the URL",
			response: onResponse(func(r *v1.ExecResponse) { r.Url = "http://127.0.0.1:1/exec/x" }),
		},
		{
			defect: "the attach URL is dead", caseName: "a client can attach to a container", report: "does not answer at the URL", runs: hostProcesses,
			response: onResponse(func(r *v1.AttachResponse) { r.Url = "http://127.0.0.1:1/attach/x" }),
		},
		{
			defect: "the port-forward URL is empty", caseName: "a port of a pod can be forwarded", report: "names no server",
			response: onResponse(func(r *v1.PortForwardResponse) { r.Url = "" }),
		},
		{
			defect: "a streamed command loses its exit code", caseName: "a command that is run with streams returns its exit code", report: "exits with 3",
			request: onRequest(func(r *v1.ExecRequest) { r.Cmd = []string{"true"} }),
		},
		{
			defect: "a streamed command in an ended container succeeds", caseName: "streams of an ended container are refused", report: "exec in an ended container",
			call: losesErrors("Exec"),
		},
		{
			defect: "attaching to an ended container succeeds", caseName: "streams of an ended container are refused", report: "attach to an ended container",
			call: losesErrors("Attach"),
		},
	}
}

func mutantsOfIsolation() []mutant {
	return []mutant{
		{
			defect: "mounts are ignored", caseName: "a mounted directory is the host's", report: "content of a file in the mounted directory", runs: isolatedProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Mounts = nil }),
		},
		{
			defect: "readonly of a mount is ignored", caseName: "a read-only mount cannot be written", report: "the container wrote to the host's directory", runs: isolatedProcesses,
			request: onContainer(func(c *v1.ContainerConfig) {
				for _, m := range c.GetMounts() {
					m.Readonly = false
				}
			}),
		},
		{
			defect: "a read-only mount is reported as writable", caseName: "a read-only mount cannot be written", report: "reported as writable", runs: isolatedProcesses,
			response: onStatus(func(st *v1.ContainerStatus) {
				for _, m := range st.GetMounts() {
					m.Readonly = false
				}
			}),
		},
		{
			defect: "readonly_rootfs is ignored", caseName: "a read-only root cannot be written", report: "readonly_rootfs", runs: isolatedProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Linux.SecurityContext.ReadonlyRootfs = false }),
		},
		{
			defect: "run_as_user is ignored", caseName: "a container runs as its user and groups", report: "run_as_user 12345", runs: isolatedProcesses,
			request: onContainer(func(c *v1.ContainerConfig) {
				c.Linux.SecurityContext.RunAsUser, c.Linux.SecurityContext.RunAsGroup = nil, nil
			}),
		},
		{
			defect: "run_as_username is ignored", caseName: "a container runs as the user that its image names", report: "run_as_username daemon", runs: isolatedProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Linux.SecurityContext.RunAsUsername = "" }),
		},
		{
			defect: "run_as_group is ignored", caseName: "a container runs as its user and groups", report: "run_as_group 23456", runs: isolatedProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Linux.SecurityContext.RunAsGroup = nil }),
		},
		{
			defect: "supplemental_groups are ignored", caseName: "a container runs as its user and groups", report: "supplemental_groups 34567", runs: isolatedProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Linux.SecurityContext.SupplementalGroups = nil }),
		},
		{
			defect: "no_new_privs is ignored", caseName: "a process cannot gain privileges where it must not", report: "no_new_privs", runs: hostProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Linux.SecurityContext.NoNewPrivs = false }),
		},
		{
			defect: "hostname is ignored", caseName: "a pod has its host name", report: "host name in the container", runs: isolatedProcesses,
			request: onRequest(func(r *v1.RunPodSandboxRequest) { r.Config.Hostname = "" }),
		},
		{
			defect: "dns_config is ignored", caseName: "a pod has its DNS configuration", report: `/etc/resolv.conf lacks "nameserver 10.9.8.7"`, runs: isolatedProcesses,
			request: onRequest(func(r *v1.RunPodSandboxRequest) { r.Config.DnsConfig = nil }),
		},
		{
			defect: "tty is ignored", caseName: "a container with a terminal has one", report: "tty: exit code", runs: hostProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Tty = false }),
		},
		{
			defect: "stdin is ignored", caseName: "a container with stdin waits for input", report: "stdin: state of a container", runs: hostProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Stdin = false }),
		},
		{
			defect: "every container has stdin", caseName: "a container with stdin waits for input", report: "the exit of the container: did not happen", runs: hostProcesses,
			request: onContainer(func(c *v1.ContainerConfig) { c.Stdin = true }),
		},
	}
}

func mutantsOfProcesses() []mutant {
	return []mutant{
		{
			defect: "an unterminated last line is lost", caseName: "the last line is logged even without a newline", report: "the log lacks the last line",
			executor: func(e embedded.Executor) embedded.Executor { return lineExecutor{e} },
		},
		{
			defect: "a command past its timeout runs on", caseName: "a command past its timeout does not run on", report: "still runs in the container", runs: hostProcesses,
			executor: func(e embedded.Executor) embedded.Executor { return detachingExecutor{e} },
		},
		{
			defect: "the grace period is doubled", caseName: "a container that does not end is killed after its grace period", report: "for a grace period of 3s",
			request: onRequest(func(r *v1.StopContainerRequest) { r.Timeout *= 2 }),
		},
		{
			defect: "the grace period is ignored", caseName: "a container that does not end is killed after its grace period", report: "before its grace period of 3s",
			request: onRequest(func(r *v1.StopContainerRequest) { r.Timeout = 0 }),
		},
		{
			defect: "a grace period of 0 is taken for 5s", caseName: "without a grace period a container is killed at once", report: "for a grace period of 0",
			request: onRequest(func(r *v1.StopContainerRequest) {
				if r.GetTimeout() == 0 {
					r.Timeout = 5
				}
			}),
		},
	}
}

func mutantsOfStatuses() []mutant {
	return []mutant{
		{
			defect: "created_at of containers is in seconds", caseName: "a container that was made does not run yet", report: "created_at of the container",
			response: onStatus(func(st *v1.ContainerStatus) { st.CreatedAt /= int64(time.Second) }),
		},
		{
			defect: "started_at of containers is in seconds", caseName: "a started container is reported as running", report: "started_at of the container",
			response: onStatus(func(st *v1.ContainerStatus) { st.StartedAt /= int64(time.Second) }),
		},
		{
			defect: "created_at of pods is in seconds", caseName: "a pod reports its creation time", report: "created_at of the pod",
			response: onResponse(func(r *v1.PodSandboxStatusResponse) { r.Status.CreatedAt /= int64(time.Second) }),
		},
		{
			defect: "the address of a pod changes", caseName: "a pod keeps its address", report: "address of the ready pod in a later status",
			response: func() func(string, proto.Message) {
				var calls atomic.Int64
				return onResponse(func(r *v1.PodSandboxStatusResponse) {
					r.Status.Network.Ip = "10.0.0." + strconv.FormatInt(calls.Add(1), 10)
				})
			}(),
		},
		{
			defect: "the status of a pod has no containers", caseName: "the status of a pod has the statuses of its containers", report: "containers_statuses of the answer of PodSandboxStatus lacks container",
			response: onResponse(func(r *v1.PodSandboxStatusResponse) { r.ContainersStatuses = nil }),
		},
		{
			defect: "the status of a pod has stale containers", caseName: "the status of a pod has the statuses of its containers", report: "state of a container in containers_statuses of the answer of PodSandboxStatus",
			response: onResponse(func(r *v1.PodSandboxStatusResponse) {
				for _, st := range r.GetContainersStatuses() {
					st.State = v1.ContainerState_CONTAINER_CREATED
				}
			}),
		},
		{
			defect: "the status of a pod has no timestamp", caseName: "the status of a pod has the statuses of its containers", report: "timestamp is missing",
			response: onResponse(func(r *v1.PodSandboxStatusResponse) { r.Timestamp = 0 }),
		},
		{
			defect: "the name of the image is lost", caseName: "a container reports the name of its image", report: `image.image in the status is ""`,
			response: onStatus(func(st *v1.ContainerStatus) { st.Image = &v1.ImageSpec{} }),
		},
		{
			defect: "the image is named by its id", caseName: "a container reports the name of its image", report: "want a name of the image",
			response: onStatus(func(st *v1.ContainerStatus) { st.Image.Image = st.GetImageId() }),
		},
		{
			defect: "lists do not name the image of a container", caseName: "a container reports the name of its image", report: "image.image in the list is empty",
			response: onItems(func(it *v1.Container) { it.Image = nil }),
		},
		{
			defect: "the user is not reported", caseName: "a container reports its user", report: "user.linux is missing",
			response: onStatus(func(st *v1.ContainerStatus) { st.User = nil }),
		},
	}
}

func mutantsOfEvents() []mutant {
	const statuses = "an event carries the statuses of the pod's containers"
	return []mutant{
		{
			defect: "events of sandboxes are missing", caseName: "sandbox events arrive in order", report: "the event CONTAINER_CREATED_EVENT: did not happen",
			response: onResponse(func(e *v1.ContainerEventResponse) {
				if e.GetContainerId() == e.GetPodSandboxStatus().GetId() {
					e.ContainerId = ""
				}
			}),
		},
		{
			defect: "events have no statuses", caseName: statuses, report: "containers_statuses of the event of a start lacks container",
			response: onResponse(func(e *v1.ContainerEventResponse) { e.ContainersStatuses = nil }),
		},
		{
			defect: "events have the statuses from before", caseName: statuses, report: "state of a container in containers_statuses of the event of a start",
			response: onResponse(func(e *v1.ContainerEventResponse) {
				for _, st := range e.GetContainersStatuses() {
					if st.GetState() == running {
						st.State = created
					}
				}
			}),
		},
		{
			defect: "events of exits show a running container", caseName: statuses, report: "state of a container in containers_statuses of the event of an exit",
			response: onResponse(func(e *v1.ContainerEventResponse) {
				for _, st := range e.GetContainersStatuses() {
					if st.GetState() == exited {
						st.State = running
					}
				}
			}),
		},
		{
			defect: "events of exits have no exit code", caseName: statuses, report: "exit code in the event of an exit",
			response: onResponse(func(e *v1.ContainerEventResponse) {
				for _, st := range e.GetContainersStatuses() {
					st.ExitCode = 0
				}
			}),
		},
		{
			defect: "events have no address", caseName: "an event carries its pod", report: "address of the pod in the event",
			response: onResponse(func(e *v1.ContainerEventResponse) { e.PodSandboxStatus.Network = nil }),
		},
		{
			defect: "events have times in seconds", caseName: "an event carries its pod", report: "created_at of the event",
			response: onResponse(func(e *v1.ContainerEventResponse) { e.CreatedAt /= int64(time.Second) }),
		},
	}
}

func mutantsOfStats() []mutant {
	return []mutant{
		{
			defect: "processor time is in milliseconds", caseName: "processor time is in nanoseconds", report: "usage_core_nano_seconds",
			response: onResponse(func(r *v1.ContainerStatsResponse) { r.Stats.Cpu.UsageCoreNanoSeconds.Value /= uint64(time.Millisecond) }),
		},
		{
			defect: "processor time is too large", caseName: "processor time is in nanoseconds", report: "which is more than",
			response: onResponse(func(r *v1.ContainerStatsResponse) { r.Stats.Cpu.UsageCoreNanoSeconds.Value *= uint64(time.Millisecond) }),
		},
		{
			defect: "label selectors of measurements are ignored", caseName: "measurements are found by pod and container", report: "containers measured by label_selector",
			request: onRequest(func(r *v1.ListContainerStatsRequest) { r.Filter.LabelSelector = nil }),
		},
		{
			defect: "measurements have no labels", caseName: "measurements carry the container's labels", report: "label io.kubernetes.pod.uid",
			response: onResponse(func(r *v1.ListContainerStatsResponse) {
				for _, s := range r.GetStats() {
					s.Attributes.Labels = nil
				}
			}),
		},
		{
			defect: "the measurement of the image file system is stale", caseName: "the image file system is measured", report: "the measurement is 1h0m0s old",
			response: onResponse(func(r *v1.ImageFsInfoResponse) {
				for _, fs := range r.GetImageFilesystems() {
					fs.Timestamp -= int64(time.Hour)
				}
			}),
		},
	}
}
