package embedded

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a runtime with clients.
type rig struct {
	*Runtime
	rs v1.RuntimeServiceClient
	is v1.ImageServiceClient
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	rt, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	cc, err := rt.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return &rig{rt, v1.NewRuntimeServiceClient(cc), v1.NewImageServiceClient(cc)}
}

func podConfig(name string, annotations ...string) *v1.PodSandboxConfig {
	return &v1.PodSandboxConfig{
		Metadata:    &v1.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name + "-uid"},
		Labels:      map[string]string{"io.kubernetes.pod.name": name},
		Annotations: pairs(annotations),
	}
}

func pairs(kv []string) map[string]string {
	m := map[string]string{}
	for _, p := range kv {
		k, v, _ := strings.Cut(p, ": ")
		m[k] = v
	}
	return m
}

// run makes a pod.
func (g *rig) run(t testing.TB, cfg *v1.PodSandboxConfig) string {
	t.Helper()
	r, err := g.rs.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: cfg})
	require.NoError(t, err)
	return r.GetPodSandboxId()
}

// create makes a container that is called c and has the given command.
func (g *rig) create(t testing.TB, sandbox string, edit func(*v1.ContainerConfig), cmd ...string) (string, error) {
	t.Helper()
	_, err := g.is.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "busybox"}})
	require.NoError(t, err)
	cfg := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "busybox"}, Command: cmd, LogPath: "c/0.log",
	}
	if edit != nil {
		edit(cfg)
	}
	r, err := g.rs.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: sandbox, Config: cfg})
	return r.GetContainerId(), err
}

// start makes and starts a container.
func (g *rig) start(t testing.TB, sandbox string, edit func(*v1.ContainerConfig), cmd ...string) string {
	t.Helper()
	id, err := g.create(t, sandbox, edit, cmd...)
	require.NoError(t, err)
	_, err = g.rs.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
	require.NoError(t, err)
	return id
}

func (g *rig) status(t testing.TB, id string) *v1.ContainerStatus {
	t.Helper()
	r, err := g.rs.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
	require.NoError(t, err)
	return r.GetStatus()
}

// exited waits until a container has ended, in real time.
func (g *rig) exited(t testing.TB, id string) *v1.ContainerStatus {
	t.Helper()
	var st *v1.ContainerStatus
	require.Eventually(t, func() bool {
		st = g.status(t, id)
		return st.GetState() == v1.ContainerState_CONTAINER_EXITED
	}, 10*time.Second, 5*time.Millisecond)
	return st
}

func (g *rig) stop(t testing.TB, id string, seconds int64) {
	t.Helper()
	_, err := g.rs.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: id, Timeout: seconds})
	require.NoError(t, err)
}

// events subscribes and returns a function that reads the next event.
func (g *rig) events(t testing.TB) func() *v1.ContainerEventResponse {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s, err := g.rs.GetContainerEvents(ctx, &v1.GetEventsRequest{})
	require.NoError(t, err)
	_, err = s.Header()
	require.NoError(t, err)
	return func() *v1.ContainerEventResponse {
		e, err := s.Recv()
		require.NoError(t, err)
		return e
	}
}

// logLines reads a CRI log: stream, tag and text of each entry.
func logLines(t testing.TB, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	var out []string
	for line := range strings.SplitSeq(strings.TrimSuffix(string(b), "\n"), "\n") {
		stamp, rest, ok := strings.Cut(line, " ")
		require.True(t, ok, "log line %q", line)
		_, err := time.Parse(time.RFC3339Nano, stamp)
		require.NoError(t, err)
		out = append(out, rest)
	}
	return out
}

func withLogs(t testing.TB, cfg *v1.PodSandboxConfig) (*v1.PodSandboxConfig, string) {
	cfg.LogDirectory = t.TempDir()
	return cfg, filepath.Join(cfg.LogDirectory, "c/0.log")
}

// textLogger logs to w, for tests that read what was logged after it was written.
func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
