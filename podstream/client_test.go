package podstream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/stream"
)

// target is a running container in a runtime with a streaming server.
type target struct {
	rt                 *cri.Client
	container, sandbox string
	// terminal is a container with a terminal that echoes lines.
	terminal string
	// port returns a port of the pod that responds to request, once the client half closes,
	// with what contains response.
	port              func(t *testing.T) uint16
	request, response string
}

var labels = map[string]string{runtime.LabelOwner: cri.DefaultOwner, runtime.LabelPodUID: "u1", runtime.LabelPodName: "web", runtime.LabelPodNamespace: "default"}

func newEmbedded(t *testing.T) *target {
	t.Helper()
	rt, err := embedded.New(embedded.Config{Executor: hostprocess.New(hostprocess.Config{Root: t.TempDir(), Unprivileged: true})})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, err := stream.New(rt, listener)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, s.Run(ctx)) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	conn, err := rt.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = criv1.NewImageServiceClient(conn).PullImage(ctx, &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: "busybox"}})
	require.NoError(t, err)
	client, err := cri.New(conn, cri.Config{})
	require.NoError(t, err)
	target := start(t, criv1.NewRuntimeServiceClient(conn), client, &criv1.PodSandboxConfig{}, "busybox")
	target.port = func(t *testing.T) uint16 { return echoPort(t, "tcp", "127.0.0.1:0") }
	target.request, target.response = "hello", "hello end"
	return target
}

// start runs a pod with two containers.
func start(t *testing.T, rs criv1.RuntimeServiceClient, client *cri.Client, config *criv1.PodSandboxConfig, image string) *target {
	t.Helper()
	config.Metadata, config.Labels = &criv1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"}, labels
	sandbox, err := rs.RunPodSandbox(t.Context(), &criv1.RunPodSandboxRequest{Config: config})
	require.NoError(t, err)
	run := func(name string, tty bool, command ...string) string {
		c, err := rs.CreateContainer(t.Context(), &criv1.CreateContainerRequest{
			PodSandboxId: sandbox.GetPodSandboxId(), SandboxConfig: config, Config: &criv1.ContainerConfig{
				Metadata: &criv1.ContainerMetadata{Name: name}, Image: &criv1.ImageSpec{Image: image}, Command: command, Labels: labels,
				Tty: tty, Stdin: tty, LogPath: name + ".log",
			},
		})
		require.NoError(t, err)
		_, err = rs.StartContainer(t.Context(), &criv1.StartContainerRequest{ContainerId: c.GetContainerId()})
		require.NoError(t, err)
		return c.GetContainerId()
	}
	return &target{
		rt: client, sandbox: sandbox.GetPodSandboxId(), container: run("app", false, "sleep", "1000"),
		terminal: run("shell", true, "sh", "-c", "while read line; do echo got $line; done; exit 4"),
	}
}

// echoPort listens and echoes until the client half closes.
func echoPort(t *testing.T, network, address string) uint16 {
	t.Helper()
	listener, err := net.Listen(network, address)
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(c, c)
				_, _ = io.WriteString(c, " end")
				_ = c.Close()
			})
		}
	})
	addr, ok := listener.Addr().(*net.TCPAddr)
	require.True(t, ok)
	return uint16(addr.Port)
}

func (g *target) exec(t *testing.T, o podstream.Options, command ...string) error {
	t.Helper()
	u, err := g.rt.ExecURL(t.Context(), g.container, command, runtime.Streams{
		Stdin: o.Stdin != nil, Stdout: o.Stdout != nil, Stderr: o.Stderr != nil && !o.TTY, TTY: o.TTY,
	})
	require.NoError(t, err)
	return new(podstream.Client).Stream(t.Context(), u, o)
}

// OP-7; TestClient_Containerd does the same.
func TestClient_Embedded(t *testing.T) { testClient(t, newEmbedded(t)) }

// testClient is what holds for every runtime.
func testClient(t *testing.T, g *target) {
	t.Run("exec with all streams", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		err := g.exec(t, podstream.Options{Stdin: strings.NewReader("fed\n"), Stdout: &stdout, Stderr: &stderr}, "sh", "-c", "cat; echo bad >&2")
		require.NoError(t, err)
		assert.Equal(t, "fed\n", stdout.String())
		assert.Equal(t, "bad\n", stderr.String())
	})
	t.Run("exit code", func(t *testing.T) {
		var stdout bytes.Buffer
		err := g.exec(t, podstream.Options{Stdout: &stdout}, "sh", "-c", "echo out; exit 7")
		var exit podstream.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Equal(t, 7, exit.Code)
		require.EqualError(t, err, "command terminated with exit code 7")
		assert.Equal(t, "out\n", stdout.String())
	})
	t.Run("no such command", func(t *testing.T) {
		err := g.exec(t, podstream.Options{Stdout: io.Discard}, "/no/such/command")
		require.Error(t, err)
	})
	t.Run("large output", func(t *testing.T) {
		var stdout bytes.Buffer
		require.NoError(t, g.exec(t, podstream.Options{Stdout: &stdout}, "sh", "-c", "head -c 5000000 /dev/zero"))
		assert.Equal(t, 5_000_000, stdout.Len())
	})
	t.Run("large input", func(t *testing.T) {
		var stdout bytes.Buffer
		in := bytes.Repeat([]byte("0123456789"), 200_000)
		require.NoError(t, g.exec(t, podstream.Options{Stdin: bytes.NewReader(in), Stdout: &stdout}, "sh", "-c", "wc -c"))
		assert.Equal(t, "2000000", strings.TrimSpace(stdout.String()))
	})
	t.Run("terminal", func(t *testing.T) {
		var stdout bytes.Buffer
		sizes := make(chan podstream.TerminalSize, 1)
		sizes <- podstream.TerminalSize{Width: 77, Height: 33}
		in, typed := io.Pipe()
		defer typed.Close()
		const sized = `for i in $(seq 1000); do [ "$(stty size)" = "33 77" ] && break; sleep 0.01; done; stty size`
		require.NoError(t, g.exec(t, podstream.Options{Stdin: in, Stdout: &stdout, TTY: true, Resize: sizes}, "sh", "-c", sized))
		assert.Contains(t, stdout.String(), "33 77")
	})
	t.Run("writer fails", func(t *testing.T) {
		full := errors.New("disk is full")
		err := g.exec(t, podstream.Options{Stdout: failingWriter{full}}, "sh", "-c", "while :; do echo x; done")
		require.ErrorIs(t, err, full)
	})
	t.Run("context", func(t *testing.T) {
		u, err := g.rt.ExecURL(t.Context(), g.container, []string{"sleep", "1000"}, runtime.Streams{Stdout: true})
		require.NoError(t, err)
		tired := errors.New("tired")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(tired) })
		require.ErrorIs(t, new(podstream.Client).Stream(ctx, u, podstream.Options{Stdout: io.Discard}), tired)
	})
	t.Run("a URL is valid once", func(t *testing.T) {
		u, err := g.rt.ExecURL(t.Context(), g.container, []string{"true"}, runtime.Streams{Stdout: true})
		require.NoError(t, err)
		require.NoError(t, new(podstream.Client).Stream(t.Context(), u, podstream.Options{Stdout: io.Discard}))
		err = new(podstream.Client).Stream(t.Context(), u, podstream.Options{Stdout: io.Discard})
		require.Error(t, err)
		assert.NotContains(t, err.Error(), u.Path, "it is a secret")
	})
	t.Run("attach", func(t *testing.T) {
		u, err := g.rt.AttachURL(t.Context(), g.terminal, runtime.Streams{Stdin: true, Stdout: true, TTY: true})
		require.NoError(t, err)
		var stdout bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out := &waiter{until: "got hello", found: cancel, w: &stdout}
		in, typed := io.Pipe()
		defer typed.Close()
		go func() { _, _ = io.WriteString(typed, "hello\n") }()
		require.ErrorIs(t, new(podstream.Client).Stream(ctx, u, podstream.Options{Stdin: in, Stdout: out, TTY: true}), context.Canceled)
	})
	t.Run("port-forward", func(t *testing.T) {
		port := g.port(t)
		u, err := g.rt.PortForwardURL(t.Context(), g.sandbox, []int32{int32(port)})
		require.NoError(t, err)
		f, err := new(podstream.Client).PortForward(t.Context(), u)
		require.NoError(t, err)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- f.Serve(ctx, listener, port, nil) }()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				c, err := net.Dial("tcp", listener.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				defer c.Close()
				_, _ = io.WriteString(c, g.request)
				assert.NoError(t, c.(*net.TCPConn).CloseWrite())
				b, err := io.ReadAll(c)
				assert.NoError(t, err)
				assert.Contains(t, string(b), g.response)
			})
		}
		wg.Wait()
		// Nothing listens there.
		unserved, err := f.Dial(1)
		if err == nil {
			_, err = unserved.Read(make([]byte, 1))
			_ = unserved.Close()
		}
		require.ErrorContains(t, err, "forward port 1: ")
		cancel()
		require.NoError(t, <-served)
		require.NoError(t, f.Close())
	})
}

// waiter calls found when until was written.
type waiter struct {
	until string
	found func()
	w     *bytes.Buffer
}

func (w *waiter) Write(b []byte) (int, error) {
	_, _ = w.w.Write(b)
	if strings.Contains(w.w.String(), w.until) {
		w.found()
	}
	return len(b), nil
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestClient_ServerErrors(t *testing.T) {
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		http.Error(w, "container is not running", http.StatusConflict)
	}))
	defer server.Close()
	u, err := url.Parse(server.URL + "/exec/secret")
	require.NoError(t, err)
	client := podstream.Client{Header: http.Header{"Authorization": {"Bearer x"}}}
	err = client.Stream(t.Context(), u, podstream.Options{Stdout: io.Discard})
	require.ErrorContains(t, err, "container is not running")
	assert.Equal(t, "Bearer x", got.Get("Authorization"))
	_, err = client.PortForward(t.Context(), u)
	require.ErrorContains(t, err, "container is not running")
	server.Close()
	err = client.Stream(t.Context(), u, podstream.Options{Stdout: io.Discard})
	require.ErrorContains(t, err, "connection refused")
	assert.NotContains(t, err.Error(), "secret")
}
