package embedded_test

import (
	"context"
	"net"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// clumsy is an executor that panics in one of its methods.
type clumsy struct {
	*simulated.Executor
	in     string
	exited func(embedded.Exit) // of the container that was started last
}

func (e *clumsy) panicIn(method string) {
	if e.in == method {
		panic("no such luck")
	}
}

func (e *clumsy) Create(ctx context.Context, c *embedded.Container) error {
	e.panicIn("Create")
	return e.Executor.Create(ctx, c)
}

func (e *clumsy) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	e.panicIn("Start")
	e.exited = exited
	p, err := e.Executor.Start(ctx, c, sio, exited)
	e.panicIn("Start, with a process")
	return clumsyProcess{p, e}, err
}

func (e *clumsy) Remove(c *embedded.Container) {
	e.panicIn("Remove")
	e.Executor.Remove(c)
}

type clumsyProcess struct {
	embedded.Process
	*clumsy
}

func (p clumsyProcess) Exec(ctx context.Context, e embedded.Exec) (int32, error) {
	p.panicIn("Exec")
	return p.Process.Exec(ctx, e)
}

func (p clumsyProcess) Signal(sig syscall.Signal) error {
	err := p.Process.Signal(sig)
	p.panicIn("Signal")
	return err
}

func (e *clumsy) DialPod(ctx context.Context, pod *v1.PodSandboxConfig, port int32) (net.Conn, error) {
	e.panicIn("DialPod")
	return e.Executor.DialPod(ctx, pod, port)
}

func (e *clumsy) Close() error {
	e.panicIn("Close")
	return nil
}

// AG-9: a panic in an executor is the error of the call, and the runtime goes on.
func TestRuntime_SurvivesPanicsOfTheExecutor(t *testing.T) {
	for _, method := range []string{"Create", "Start", "Exec", "Remove"} {
		t.Run(method, func(t *testing.T) {
			e := &clumsy{Executor: simulated.New(simulated.Config{}), in: method}
			g := newRig(t, embedded.Config{Executor: e})
			sb := g.RunPod(t, embeddedtest.PodConfig("p"))
			use := func() (id string, err error) {
				if id, err = g.Create(t, sb, nil, "sleep", "1d"); err != nil {
					return id, err
				}
				if _, err := g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id}); err != nil {
					return id, err
				}
				_, err = g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: 10})
				return id, err
			}
			id, err := use()
			if method != "Remove" {
				require.ErrorContains(t, err, "no such luck")
			}
			if id != "" {
				_, err = g.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: id})
				require.NoError(t, err)
			}
			e.in = ""
			_, err = use()
			assert.NoError(t, err)
		})
	}
}

// clumsyAllocator is a clumsy executor that also allocates addresses.
type clumsyAllocator struct{ *clumsy }

func (e clumsyAllocator) Sandbox(ctx context.Context, pod *v1.PodSandboxConfig) error {
	e.panicIn("Sandbox")
	return e.Executor.Sandbox(ctx, pod)
}

func (e clumsyAllocator) PodIPs(*v1.PodSandboxConfig) []string {
	e.panicIn("PodIPs")
	return []string{"192.0.2.1"}
}

// AG-9: a pod whose sandbox an executor could not prepare can be run again under its name, and others meanwhile.
func TestRuntime_SurvivesPanicsOfASandbox(t *testing.T) {
	for _, method := range []string{"Sandbox", "PodIPs"} {
		t.Run(method, func(t *testing.T) {
			e := &clumsy{Executor: simulated.New(simulated.Config{}), in: method}
			g := newRig(t, embedded.Config{Executor: clumsyAllocator{e}})
			_, err := g.CRI.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: embeddedtest.PodConfig("p")})
			require.ErrorContains(t, err, "no such luck")
			e.in = ""
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			sb, err := g.CRI.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: embeddedtest.PodConfig("p")})
			require.NoError(t, err)
			assert.Equal(t, "192.0.2.1", g.PodIP(t, sb.GetPodSandboxId()))
		})
	}
}

// AG-9: a container whose executor reports a second exit, or one after its start has failed, has exited as it was reported first.
func TestRuntime_SurvivesExtraExits(t *testing.T) {
	for _, in := range []string{"", "Start, with a process"} {
		e := &clumsy{Executor: simulated.New(simulated.Config{}), in: in}
		g := newRig(t, embedded.Config{Executor: e})
		sb := g.RunPod(t, embeddedtest.PodConfig("p"))
		id, err := g.Create(t, sb, nil, "sleep", "1d")
		require.NoError(t, err)
		_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
		want := int32(3)
		if in != "" {
			require.ErrorContains(t, err, "no such luck")
			want = 128
		}
		e.exited(embedded.Exit{Code: 3})
		e.exited(embedded.Exit{Code: 4})
		st, err := g.CRI.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
		require.NoError(t, err)
		assert.Equal(t, want, st.GetStatus().GetExitCode())
		_, err = g.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: id})
		require.NoError(t, err)
	}
}

// A container whose executor passes on what a program has printed can be inspected, and its events are sent.
func TestRuntime_ReportsAMessageThatIsNoText(t *testing.T) {
	e := &clumsy{Executor: simulated.New(simulated.Config{})}
	g := newRig(t, embedded.Config{Executor: e})
	next := g.Events(t)
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil, "sleep", "1d")
	e.exited(embedded.Exit{Code: 3, Reason: "Lost\xff", Message: "\xfe\xff power"})
	st := g.Inspect(t, id)
	assert.Equal(t, "Lost\uFFFD", st.GetReason())
	assert.Equal(t, "\uFFFD power", st.GetMessage())
	var kinds []v1.ContainerEventType
	for !slices.Contains(kinds, v1.ContainerEventType_CONTAINER_STOPPED_EVENT) {
		kinds = append(kinds, next().GetContainerEventType())
	}
}

// AG-9: an executor panics outside of a call of a client.
func TestRuntime_SurvivesPanicsOfHostPorts(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := lis.Addr().(*net.TCPAddr).Port
	require.NoError(t, lis.Close())
	g := newRig(t, embedded.Config{Executor: &clumsy{Executor: simulated.New(simulated.Config{}), in: "DialPod"}, HostPorts: true})
	pod := embeddedtest.PodConfig("p")
	pod.PortMappings = []*v1.PortMapping{{HostIp: "127.0.0.1", HostPort: int32(port), ContainerPort: 80}}
	g.RunPod(t, pod)
	for range 2 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err, "the connection is closed")
		require.NoError(t, conn.Close())
	}
}

// AG-9
func TestRuntime_CloseSurvivesPanicsOfTheExecutor(t *testing.T) {
	for _, method := range []string{"Signal", "Close"} {
		t.Run(method, func(t *testing.T) {
			e := &clumsy{Executor: simulated.New(simulated.Config{})}
			r, err := embedded.New(embedded.Config{Executor: e})
			require.NoError(t, err)
			_, err = r.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "app"}})
			require.NoError(t, err)
			sb, err := r.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: embeddedtest.PodConfig("p")})
			require.NoError(t, err)
			c, err := r.CreateContainer(t.Context(), &v1.CreateContainerRequest{
				PodSandboxId: sb.GetPodSandboxId(), SandboxConfig: embeddedtest.PodConfig("p"),
				Config: &v1.ContainerConfig{Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "app"}},
			})
			require.NoError(t, err)
			_, err = r.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: c.GetContainerId()})
			require.NoError(t, err)
			e.in = method
			assert.ErrorContains(t, r.Close(), "no such luck")
		})
	}
}
