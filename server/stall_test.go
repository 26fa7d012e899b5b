package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/sublet-dev/agent/server"
)

// stalled executes a command that reads no stdin, and returns the connection of its client
// when that cannot send any more of it.
func (n *secureNode) stalled(t *testing.T) net.Conn {
	t.Helper()
	cfg, err := websocket.NewConfig("wss://"+n.addr+"/exec/default/web/app?command=stall&input=1&output=1", "https://"+n.addr)
	require.NoError(t, err)
	cfg.Protocol = []string{"v5.channel.k8s.io"}
	cfg.Header.Set("Authorization", "Bearer good")
	conn := dial(t, n.addr)
	tlsConfig := n.tls()
	tlsConfig.ServerName = "127.0.0.1"
	secure := tls.Client(conn, tlsConfig)
	client, err := websocket.NewClient(cfg, secure)
	require.NoError(t, err)
	client.PayloadType = websocket.BinaryFrame
	frame := make([]byte, 32<<10) // of channel 0
	for err == nil {
		require.NoError(t, client.SetWriteDeadline(time.Now().Add(time.Second)))
		_, err = client.Write(frame)
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	return conn
}

// A command that reads no stdin does not keep the server from its end. SV-3
func TestServe_EndsStreamWithUnreadInput(t *testing.T) {
	n := serveSecure(t)
	n.stall = make(chan struct{})
	defer close(n.stall)
	s, err := server.New(n.cfg)
	require.NoError(t, err)
	addr, end := start(t, s)
	n.addr = addr
	n.stalled(t)
	end()
}

// A client that does not read the output does not keep the server from its end. SV-3
func TestServe_EndsStreamWithUnreadOutput(t *testing.T) {
	n := serveSecure(t)
	s, err := server.New(n.cfg)
	require.NoError(t, err)
	addr, end := start(t, s)
	n.addr = addr
	release := make(chan struct{})
	defer close(release)
	unread := writerFunc(func(b []byte) (int, error) {
		if len(b) > 0 {
			<-release
		}
		return len(b), nil
	})
	for _, e := range n.executors(t, "/exec/default/web/app", with(command("flood"), "output")) {
		go func() { _ = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: unread}) }()
	}
	before := int64(0)
	require.Eventually(t, func() bool { // all buffers in between are full
		now := n.output.Load()
		full := now > 0 && now == before
		before = now
		return full
	}, time.Minute, time.Second)
	end()
}

// The stream of a client that is gone ends although the command has not read its stdin. SV-3
func TestExec_ClientWithUnreadInputGoesAway(t *testing.T) {
	n := serveSecure(t)
	n.stall = make(chan struct{})
	defer close(n.stall)
	cfg := n.cfg
	cfg.MaxStreams = 1
	n.addr = serve(t, cfg, func(s *server.Server) { s.SetStallPeriod(10 * time.Millisecond) })
	require.NoError(t, n.stalled(t).Close())
	c := n.client(t)
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		status, _, _ := n.do(t, c, http.MethodPost, "/run/default/web/app?cmd=true", "good")
		assert.Equal(ct, http.StatusOK, status)
	}, time.Minute, 10*time.Millisecond)
}

// interruptible returns an address that leads to another one, and what ends the connections to it as
// the death of a process does: without a word.
func interruptible(t *testing.T, to string) (addr string, interrupt func()) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", loopback)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := new(net.Dialer).DialContext(ctx, "tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			for _, c := range [][2]net.Conn{{client, server}, {server, client}} {
				context.AfterFunc(ctx, func() { _ = c[0].Close() })
				go func() { _, _ = io.Copy(c[0], c[1]) }()
			}
		}
	}()
	return listener.Addr().String(), cancel
}

// The stream of a client that is gone ends although the command neither reads nor writes.
func TestExec_ClientOfSilentCommandGoesAway(t *testing.T) {
	n := serveSecure(t)
	n.stall = make(chan struct{})
	defer close(n.stall)
	cfg := n.cfg
	cfg.MaxStreams = 1
	addr := serve(t, cfg)
	c := n.client(t)
	for _, protocol := range []string{"SPDY", "WebSocket v4", "WebSocket v5"} {
		t.Run(protocol, func(t *testing.T) {
			var interrupt func()
			n.addr, interrupt = interruptible(t, addr)
			e := n.executors(t, "/exec/default/web/app", with(command("stall"), "output"))[protocol]
			n.addr = addr
			started := writerFunc(func(b []byte) (int, error) {
				if len(b) > 0 {
					interrupt()
				}
				return len(b), nil
			})
			_ = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: started}) // for SPDY, a closed connection is no error
			require.EventuallyWithT(t, func(ct *assert.CollectT) {
				status, _, _ := n.do(t, c, http.MethodPost, "/run/default/web/app?cmd=true", "good")
				assert.Equal(ct, http.StatusOK, status)
			}, time.Minute, 10*time.Millisecond)
		})
	}
}

// A command whose exit code the runtime has not sent has not succeeded, for kubectl.
func TestExec_RuntimeGoesAway(t *testing.T) {
	streams := &upstream{}
	n := serveSecure(t, func(cfg *server.Config) { cfg.Streams = streams })
	n.stall = make(chan struct{})
	defer close(n.stall)
	target, err := n.ExecURL(t.Context(), testPod(), &corev1.PodExecOptions{Container: "app", Command: []string{"stall"}, Stdout: true})
	require.NoError(t, err)
	var interrupt func()
	target.Host, interrupt = interruptible(t, target.Host)
	streams.url = target.String()
	e := n.executors(t, "/exec/default/web/app", with(command("stall"), "output"))["WebSocket v5"]
	started := writerFunc(func(b []byte) (int, error) {
		if len(b) > 0 {
			interrupt()
		}
		return len(b), nil
	})
	require.ErrorContains(t, e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: started}), "connection to the runtime")
}

// A runtime that answers nothing does not keep the server from its end.
func TestServe_EndsStreamOfSilentRuntime(t *testing.T) {
	accepted := make(chan struct{})
	silent := serve(t, server.Config{Addr: loopback, Handlers: map[string]http.Handler{"/x": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n")
		close(accepted)
		_, _ = io.Copy(io.Discard, conn)
	})}})
	n := serveSecure(t)
	n.cfg.Streams = &upstream{url: "http://" + silent + "/x"}
	s, err := server.New(n.cfg)
	require.NoError(t, err)
	addr, end := start(t, s)
	n.addr = addr
	e := n.executors(t, "/exec/default/web/app", with(command("x"), "output"))["WebSocket v5"]
	go func() { _ = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}) }()
	<-accepted
	began := time.Now()
	end()
	require.Less(t, time.Since(began), 20*time.Second, "the library waits for 30")
}
