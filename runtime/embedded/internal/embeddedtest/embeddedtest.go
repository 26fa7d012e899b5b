// Package embeddedtest drives an embedded runtime from the tests of its packages.
package embeddedtest

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
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// Fixture is a runtime with clients.
type Fixture struct {
	*embedded.Runtime
	CRI    v1.RuntimeServiceClient
	Images v1.ImageServiceClient
}

// New returns a runtime, which is closed at the end of the test.
func New(t testing.TB, cfg embedded.Config) *Fixture {
	t.Helper()
	rt, err := embedded.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	cc, err := rt.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return &Fixture{rt, v1.NewRuntimeServiceClient(cc), v1.NewImageServiceClient(cc)}
}

// PodConfig returns the configuration of a pod with annotations, each written as
// "key: value".
func PodConfig(name string, annotations ...string) *v1.PodSandboxConfig {
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

// RunPod starts a pod and returns the id of its sandbox.
func (g *Fixture) RunPod(t testing.TB, cfg *v1.PodSandboxConfig) string {
	t.Helper()
	r, err := g.CRI.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: cfg})
	require.NoError(t, err)
	return r.GetPodSandboxId()
}

// Create creates a container named c with a command.
func (g *Fixture) Create(t testing.TB, sandbox string, edit func(*v1.ContainerConfig), cmd ...string) (string, error) {
	t.Helper()
	_, err := g.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "busybox"}})
	require.NoError(t, err)
	cfg := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "busybox"}, Command: cmd, LogPath: "c/0.log",
	}
	if edit != nil {
		edit(cfg)
	}
	r, err := g.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: sandbox, Config: cfg})
	return r.GetContainerId(), err
}

// Start creates and starts a container.
func (g *Fixture) Start(t testing.TB, sandbox string, edit func(*v1.ContainerConfig), cmd ...string) string {
	t.Helper()
	id, err := g.Create(t, sandbox, edit, cmd...)
	require.NoError(t, err)
	_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
	require.NoError(t, err)
	return id
}

// Inspect returns the status of a container.
func (g *Fixture) Inspect(t testing.TB, id string) *v1.ContainerStatus {
	t.Helper()
	r, err := g.CRI.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
	require.NoError(t, err)
	return r.GetStatus()
}

// AwaitExit waits until a container has exited, in real time.
func (g *Fixture) AwaitExit(t testing.TB, id string) *v1.ContainerStatus {
	t.Helper()
	var st *v1.ContainerStatus
	require.Eventually(t, func() bool {
		st = g.Inspect(t, id)
		return st.GetState() == v1.ContainerState_CONTAINER_EXITED
	}, 10*time.Second, 5*time.Millisecond)
	return st
}

// Stop stops a container with a grace period.
func (g *Fixture) Stop(t testing.TB, id string, seconds int64) {
	t.Helper()
	_, err := g.CRI.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: id, Timeout: seconds})
	require.NoError(t, err)
}

// Events subscribes and returns a function that reads the next event.
func (g *Fixture) Events(t testing.TB) func() *v1.ContainerEventResponse {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s, err := g.CRI.GetContainerEvents(ctx, &v1.GetEventsRequest{})
	require.NoError(t, err)
	_, err = s.Header()
	require.NoError(t, err)
	return func() *v1.ContainerEventResponse {
		e, err := s.Recv()
		require.NoError(t, err)
		return e
	}
}

// ReadLog reads a CRI log: stream, tag and text of each entry.
func ReadLog(t testing.TB, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	var out []string
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		stamp, rest, ok := strings.Cut(line, " ")
		require.True(t, ok, "log line %q", line)
		_, err := time.Parse(time.RFC3339Nano, stamp)
		require.NoError(t, err)
		out = append(out, rest)
	}
	return out
}

// WithLogs gives a pod a log directory and returns the path of the log of its container.
func WithLogs(t testing.TB, cfg *v1.PodSandboxConfig) (*v1.PodSandboxConfig, string) {
	cfg.LogDirectory = t.TempDir()
	return cfg, filepath.Join(cfg.LogDirectory, "c/0.log")
}

// TextLogger logs to w, for tests that read what was logged after it was written.
func TextLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// PodIP returns the address of a pod.
func (g *Fixture) PodIP(t *testing.T, sandbox string) string {
	t.Helper()
	r, err := g.CRI.PodSandboxStatus(t.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: sandbox})
	require.NoError(t, err)
	return r.GetStatus().GetNetwork().GetIp()
}

// TryDial connects to an address as a TCP probe does.
func (g *Fixture) TryDial(t *testing.T, address string) error {
	t.Helper()
	conn, err := g.DialContext(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
