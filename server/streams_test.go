package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // the type of client-go
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"

	"github.com/sublet-dev/agent/server"
)

// restConfig is that of a client with a token.
func (n *secureNode) restConfig() *rest.Config {
	return &rest.Config{Host: "https://" + n.addr, BearerToken: "good", TLSClientConfig: rest.TLSClientConfig{CAData: n.ca.pem()}}
}

// executors are the clients of kubectl: SPDY, and WebSocket of version 5.
func (n *secureNode) executors(t *testing.T, path string, query url.Values) map[string]remotecommand.Executor {
	t.Helper()
	target := &url.URL{Scheme: "https", Host: n.addr, Path: path, RawQuery: query.Encode()}
	spdy, err := remotecommand.NewSPDYExecutor(n.restConfig(), http.MethodPost, target)
	require.NoError(t, err)
	webSocket, err := remotecommand.NewWebSocketExecutor(n.restConfig(), http.MethodGet, target.String())
	require.NoError(t, err)
	webSocketV4, err := remotecommand.NewWebSocketExecutorForProtocols(n.restConfig(), http.MethodGet, target.String(), "v4.channel.k8s.io")
	require.NoError(t, err)
	return map[string]remotecommand.Executor{"SPDY": spdy, "WebSocket v5": webSocket, "WebSocket v4": webSocketV4}
}

func command(words ...string) url.Values { return url.Values{"command": words} }

func with(v url.Values, names ...string) url.Values {
	for _, name := range names {
		v.Set(name, "1")
	}
	return v
}

// SV-3
func TestExec_StreamsAndTheirEnds(t *testing.T) {
	n := serveSecure(t)
	text := strings.Repeat("0123456789abcdef", 1<<14)
	for name, e := range n.executors(t, "/exec/default/web/app", with(command("cat"), "input", "output", "error")) {
		if name == "WebSocket v4" {
			continue // cannot end stdin
		}
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			require.NoError(t, e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out, Stderr: &errOut}))
			assert.Equal(t, text, out.String())
			assert.Equal(t, "end of input", errOut.String())
		})
	}
}

// SV-3
func TestExec_ExitCodes(t *testing.T) {
	n := serveSecure(t)
	for name, e := range n.executors(t, "/exec/default/web/uid-1/app", with(command("false"), "output")) {
		t.Run(name, func(t *testing.T) {
			var code exec.CodeExitError
			require.ErrorAs(t, e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}), &code)
			assert.Equal(t, 42, code.Code)
		})
	}
}

// The exit code of a command that has not read all of its stdin reaches the client.
func TestExec_ExitCodeWithUnreadInput(t *testing.T) {
	n := serveSecure(t)
	for name, e := range n.executors(t, "/exec/default/web/app", with(command("head"), "input")) {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				var code exec.CodeExitError
				require.ErrorAs(t, e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: endless{}}), &code)
				assert.Equal(t, 42, code.Code)
			}
		})
	}
}

// endless is input without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestExec_Output(t *testing.T) {
	n := serveSecure(t)
	for name, e := range n.executors(t, "/exec/default/web/app", with(command("output"), "output")) {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out}))
			assert.Equal(t, 1<<20, out.Len())
		})
	}
}

type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

// A terminal has one output, whatever the client asks for. SV-3
func TestExec_TerminalSize(t *testing.T) {
	n := serveSecure(t)
	for name, e := range n.executors(t, "/exec/default/web/app", with(command("size"), "input", "output", "error", "tty")) {
		t.Run(name, func(t *testing.T) {
			queue := make(sizes, 1)
			queue <- remotecommand.TerminalSize{Width: 120, Height: 40}
			defer close(queue)
			in, end := io.Pipe()
			defer end.Close()
			var out bytes.Buffer
			require.NoError(t, e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: queue}))
			assert.Equal(t, "120x40", out.String())
		})
	}
}

// SV-3
func TestAttach(t *testing.T) {
	n := serveSecure(t)
	for name, e := range n.executors(t, "/attach/default/web/app", with(url.Values{}, "input", "output", "error")) {
		if name == "WebSocket v4" {
			continue // cannot end stdin
		}
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			require.NoError(t, e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: &errOut}))
			assert.Equal(t, "hello", out.String())
		})
	}
}

// terminal is a runtime whose containers have a terminal if their spec has one.
type terminal struct {
	*fakeNode
	isOn bool
}

func (n terminal) AttachURL(ctx context.Context, pod *corev1.Pod, o *corev1.PodAttachOptions) (*url.URL, error) {
	actual := *o
	actual.TTY, actual.Stderr = n.isOn, o.Stderr && !n.isOn
	return n.fakeNode.AttachURL(ctx, pod, &actual)
}

// Whether a process has a terminal is not up to the client.
func TestAttach_Terminal(t *testing.T) {
	for _, isOn := range []bool{true, false} {
		t.Run(fmt.Sprintf("terminal %t", isOn), func(t *testing.T) {
			n := serveSecure(t, func(cfg *server.Config) {
				pod := testPod()
				pod.Spec.Containers[0].TTY = isOn
				cfg.Pods = func() []*corev1.Pod { return []*corev1.Pod{pod} }
				cfg.Streams = terminal{cfg.Streams.(*fakeNode), isOn}
			})
			query := with(url.Values{}, "input", "output")
			if !isOn {
				query = with(query, "tty")
			}
			e := n.executors(t, "/attach/default/web/app", query)["WebSocket v5"]
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var out bytes.Buffer
			require.NoError(t, e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Tty: !isOn}))
			assert.Equal(t, "hello", out.String())
		})
	}
}

// A client that goes away ends the command, also while it writes nothing. SV-3
func TestExec_ClientGoesAway(t *testing.T) {
	n := serveSecure(t)
	for name, e := range n.executors(t, "/exec/default/web/app", with(command("hang"), "input", "output")) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			in, end := io.Pipe()
			defer end.Close()
			started := writerFunc(func(b []byte) (int, error) {
				if len(b) > 0 {
					cancel()
				}
				return len(b), nil
			})
			require.ErrorIs(t, e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: started}), context.Canceled)
			<-n.exited
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestExec_RejectsInvalidRequests(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	for path, want := range map[string]int{
		"/exec/default/web/app?command=cat":                400, // no stream
		"/exec/default/web/app?command=cat&tty=1&error=1":  400,
		"/attach/default/web/app":                          400,
		"/exec/default/web/app?command=cat&output=1":       400, // no upgrade
		"/exec/default/web/other?command=cat&output=1":     404,
		"/exec/default/web/uid-2/app?command=cat&output=1": 404,
		"/portForward/default/web/uid-2":                   404,
		"/portForward/default/other":                       404,
	} {
		status, _, body := n.do(t, c, http.MethodPost, path, "good")
		assert.Equal(t, want, status, "%s: %s", path, body)
	}
}

// upgradeRequest asks for a stream with no library in between.
func (n *secureNode) upgradeRequest(t *testing.T, path string, header http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+path, http.NoBody)
	require.NoError(t, err)
	r.Header = header
	r.Header.Set("Authorization", "Bearer good")
	r.Header.Set("Connection", "Upgrade")
	resp, err := n.client(t).Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	b := make([]byte, 1000)
	k, _ := io.ReadFull(resp.Body, b)
	for name, values := range resp.Header {
		assert.NotContains(t, strings.Join(values, " "), n.url.Host, name)
	}
	return resp.StatusCode, string(b[:k])
}

// No answer tells where the runtime's streaming server listens. SV-3
func TestStreams_HideTheRuntime(t *testing.T) {
	n := serveSecure(t)
	n.record("")
	webSocket := http.Header{"Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Origin": {"https://" + n.addr}}
	tests := []struct {
		name, path string
		header     http.Header
		protocol   string
		want       int
	}{
		{"unknown token, SPDY", "/exec/default/web/app?output=1&command=refuse", http.Header{"Upgrade": {"SPDY/3.1"}}, "", 404},
		{"unknown token, v5", "/exec/default/web/app?output=1&command=refuse", webSocket, "v5.channel.k8s.io", 502},
		{"container is gone", "/exec/default/web/app?output=1&command=missing", http.Header{"Upgrade": {"SPDY/3.1"}}, "", 404},
		{"protocol that nobody knows", "/exec/default/web/app?output=1&command=cat", http.Header{"Upgrade": {"gopher"}}, "", 400},
		{"port is no number", "/portForward/default/web?port=x", webSocket, "v4.channel.k8s.io", 400},
		{"port 0", "/portForward/default/web?port=0", webSocket, "v4.channel.k8s.io", 400},
		{"no port", "/portForward/default/web", webSocket, "v4.channel.k8s.io", 400},
	}
	for _, tt := range tests {
		header := tt.header.Clone()
		if tt.protocol != "" {
			header.Set("Sec-Websocket-Protocol", tt.protocol)
		}
		status, body := n.upgradeRequest(t, tt.path, header)
		assert.Equal(t, tt.want, status, "%s: %s", tt.name, body)
		assert.NotContains(t, body, n.url.Host, tt.name)
	}
}

// upstream is a streaming server at any address.
type upstream struct{ url string }

func (u *upstream) ExecURL(context.Context, *corev1.Pod, *corev1.PodExecOptions) (*url.URL, error) {
	return url.Parse(u.url)
}

func (u *upstream) AttachURL(context.Context, *corev1.Pod, *corev1.PodAttachOptions) (*url.URL, error) {
	return url.Parse(u.url)
}

func (u *upstream) PortForwardURL(context.Context, *corev1.Pod, *corev1.PodPortForwardOptions) (*url.URL, error) {
	return url.Parse(u.url)
}

// A streaming server that redirects or is not there is an error without its address.
func TestStreams_UpstreamFails(t *testing.T) {
	redirect := &upstream{url: "http://127.0.0.1:1"}
	n := serveSecure(t, func(cfg *server.Config) { cfg.Streams = redirect })
	for _, protocol := range []string{"", "v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io"} {
		header, path := http.Header{"Upgrade": {"SPDY/3.1"}}, "/exec/default/web/app?output=1&command=x"
		if protocol != "" {
			header = http.Header{"Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {protocol}}
		}
		if strings.HasPrefix(protocol, "SPDY") {
			path = "/portForward/default/web"
		}
		status, body := n.upgradeRequest(t, path, header)
		assert.Equal(t, http.StatusBadGateway, status, protocol)
		assert.Equal(t, "the streaming server of the runtime failed\n", body)
	}
	other := serve(t, server.Config{Addr: loopback, Handlers: map[string]http.Handler{"/x": http.RedirectHandler("http://127.0.0.1:1/secret", http.StatusFound)}})
	redirect.url = "http://" + other + "/x"
	status, body := n.upgradeRequest(t, "/exec/default/web/app?output=1&command=x", http.Header{"Upgrade": {"SPDY/3.1"}})
	assert.Equal(t, http.StatusBadGateway, status)
	assert.Equal(t, "the streaming server of the runtime failed\n", body)
}

// SV-3
func TestPortForward(t *testing.T) {
	n := serveSecure(t)
	target := &url.URL{Scheme: "https", Host: n.addr, Path: "/portForward/default/web"}
	transport, upgrader, err := clientspdy.RoundTripperFor(n.restConfig())
	require.NoError(t, err)
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(target, n.restConfig())
	require.NoError(t, err)
	for name, dialer := range map[string]httpstream.Dialer{
		"SPDY":                clientspdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target),
		"SPDY in a WebSocket": tunnel,
	} {
		t.Run(name, func(t *testing.T) {
			addr, end := forwardPort(t, dialer)
			results := make(chan error, 20)
			for i := range cap(results) {
				go func() { results <- echo(t, addr, fmt.Sprintf("%04d", i)) }()
			}
			for range cap(results) {
				assert.NoError(t, <-results)
			}
			end()
		})
	}
}

// forwardPort forwards a local address to port 8080 of a pod, as kubectl does, until end is called.
func forwardPort(t *testing.T, dialer httpstream.Dialer) (addr string, end func()) {
	t.Helper()
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), func() {
		close(stop)
		require.NoError(t, <-done)
	}
}

// echo sends a word through a forwarded port.
func echo(t *testing.T, addr, word string) error {
	c := dial(t, addr)
	if _, err := io.WriteString(c, word); err != nil {
		return err
	}
	answer := make([]byte, 9)
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if string(answer) != "8080:"+word {
		return errors.New(string(answer))
	}
	return nil
}
