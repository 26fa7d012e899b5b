package stream_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/stream"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// The library never closes a stream whose client has gone before the server answered.
		goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Stream).waitWriteReply"))
}

type rig struct {
	rs      v1.RuntimeServiceClient
	sandbox string
}

// newRig is a runtime of host processes with a streaming server and one pod.
func newRig(t *testing.T) *rig {
	rt, err := embedded.New(embedded.Config{Executor: hostprocess.New(hostprocess.Config{Root: t.TempDir(), Unprivileged: true})})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, err := stream.New(rt, lis)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, s.Run(ctx)) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	cc, err := rt.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })

	r := &rig{rs: v1.NewRuntimeServiceClient(cc)}
	_, err = v1.NewImageServiceClient(cc).PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "busybox"}})
	require.NoError(t, err)
	sb, err := r.rs.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "u"},
	}})
	require.NoError(t, err)
	r.sandbox = sb.GetPodSandboxId()
	return r
}

func (r *rig) start(t *testing.T, edit func(*v1.ContainerConfig), cmd ...string) string {
	cfg := &v1.ContainerConfig{Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "busybox"}, Command: cmd}
	if edit != nil {
		edit(cfg)
	}
	c, err := r.rs.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: r.sandbox, Config: cfg})
	require.NoError(t, err)
	_, err = r.rs.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: c.GetContainerId()})
	require.NoError(t, err)
	return c.GetContainerId()
}

func TestExec(t *testing.T) {
	for name, dial := range clients() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.start(t, nil, "sleep", "1000")
			exec := func(req *v1.ExecRequest, input string, size *remotecommand.TerminalSize) result {
				req.ContainerId = id
				resp, err := r.rs.Exec(t.Context(), req)
				require.NoError(t, err)
				return dial(t, resp.GetUrl(), wants{req.Stdin, req.Stdout, req.Stderr, req.Tty}, input, size)
			}
			got := exec(&v1.ExecRequest{Cmd: []string{"sh", "-c", "read line; echo $line; echo bad >&2"}, Stdin: true, Stdout: true, Stderr: true}, "fed\n", nil)
			assert.Equal(t, result{out: "fed\n", err: "bad\n", status: "Success"}, got)

			got = exec(&v1.ExecRequest{Cmd: []string{"sh", "-c", "exit 5"}, Stdout: true}, "", nil)
			assert.Equal(t, "Failure 5", got.status)

			// The size has a stream of its own, which may be later than the input.
			const sized = `test -t 0 && test -t 1 && read line && for i in $(seq 1000); do [ "$(stty size)" = "33 77" ] && break; sleep 0.01; done && stty size`
			got = exec(&v1.ExecRequest{Cmd: []string{"sh", "-c", sized}, Tty: true, Stdin: true, Stdout: true},
				"go\n", &remotecommand.TerminalSize{Width: 77, Height: 33})
			assert.Equal(t, "Success", got.status)
			assert.Contains(t, got.out, "33 77")
		})
	}
}

func TestAttach_SendsOutputAndReadsInput(t *testing.T) {
	for name, dial := range clients() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.start(t, func(c *v1.ContainerConfig) { c.Stdin, c.StdinOnce = true, true },
				"sh", "-c", "read a; echo got $a; read b; echo got $b; echo end >&2")
			resp, err := r.rs.Attach(t.Context(), &v1.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
			require.NoError(t, err)
			got := dial(t, resp.GetUrl(), wants{in: true, out: true, err: true}, "one\ntwo\n", nil)
			assert.Equal(t, result{out: "got one\ngot two\n", err: "end\n", status: "Success"}, got)
		})
	}
}

func TestAttach_OnlyAClientWithStdinEndsTheInput(t *testing.T) {
	r := newRig(t)
	id := r.start(t, func(c *v1.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }, "sh", "-c", "echo up; cat; echo end")
	url := func(stdin bool) string {
		resp, err := r.rs.Attach(t.Context(), &v1.AttachRequest{ContainerId: id, Stdin: stdin, Stdout: true})
		require.NoError(t, err)
		return resp.GetUrl()
	}
	leave := openWebSocket(t, url(false), wants{out: true})
	require.NoError(t, leave.Close())
	got := dialSPDY(t, url(true), wants{in: true, out: true}, "x", nil)
	assert.Equal(t, "xend\n", strings.TrimPrefix(got.out, "up\n"))
}

func TestAttach_EndsWithItsClient(t *testing.T) {
	r := newRig(t)
	id := r.start(t, nil, "sh", "-c", "while :; do echo tick; sleep 0.01; done")
	resp, err := r.rs.Attach(t.Context(), &v1.AttachRequest{ContainerId: id, Stdout: true, Stderr: true})
	require.NoError(t, err)
	s := openSPDY(t, resp.GetUrl(), wants{out: true, err: true})
	line, err := bufio.NewReader(s.out).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "tick\n", line)
	require.NoError(t, s.conn.Close())
	// The container goes on, and so do calls about it.
	st, err := r.rs.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
	require.NoError(t, err)
	assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, st.GetStatus().GetState())
}

func TestPortForward(t *testing.T) {
	r := newRig(t)
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = echo.Close() })
	wg.Go(func() {
		c, err := echo.Accept()
		if err != nil {
			return
		}
		line, _ := bufio.NewReader(c).ReadString('\n')
		_, _ = fmt.Fprintf(c, "echo %s", line)
		_ = c.Close()
	})
	_, port, err := net.SplitHostPort(echo.Addr().String())
	require.NoError(t, err)
	resp, err := r.rs.PortForward(t.Context(), &v1.PortForwardRequest{PodSandboxId: r.sandbox})
	require.NoError(t, err)
	conn := upgrade(t, resp.GetUrl(), "portforward.k8s.io")
	open := func(kind string) httpstream.Stream {
		s, err := conn.CreateStream(http.Header{"streamType": {kind}, "port": {port}, "requestID": {"1"}})
		require.NoError(t, err)
		return s
	}
	open("error")
	data := open("data")
	_, err = io.WriteString(data, "hello\n")
	require.NoError(t, err)
	got, err := io.ReadAll(data)
	require.NoError(t, err)
	assert.Equal(t, "echo hello\n", string(got))
}

func TestServer_RejectsInvalidRequests(t *testing.T) {
	r := newRig(t)
	_, err := r.rs.Exec(t.Context(), &v1.ExecRequest{ContainerId: "none", Cmd: []string{"true"}, Stdout: true})
	assert.Equal(t, codes.NotFound, status.Code(err))
	_, err = r.rs.PortForward(t.Context(), &v1.PortForwardRequest{PodSandboxId: "none"})
	assert.Equal(t, codes.NotFound, status.Code(err))
	id := r.start(t, nil, "sleep", "1000")
	_, err = r.rs.Exec(t.Context(), &v1.ExecRequest{ContainerId: id, Cmd: []string{"true"}})
	assert.Equal(t, codes.InvalidArgument, status.Code(err), "no stream at all")
	_, err = r.rs.Exec(t.Context(), &v1.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Tty: true, Stdout: true, Stderr: true})
	assert.Equal(t, codes.InvalidArgument, status.Code(err), "terminals have no stderr")

	resp, err := r.rs.Exec(t.Context(), &v1.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
	require.NoError(t, err)
	w := wants{out: true}
	assert.Equal(t, "Success", dialSPDY(t, resp.GetUrl(), w, "", nil).status)
	second, err := http.Get(resp.GetUrl())
	require.NoError(t, err)
	defer func() { _ = second.Body.Close() }()
	assert.Equal(t, http.StatusNotFound, second.StatusCode, "a URL is good once")
}
