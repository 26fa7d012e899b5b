package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/sublet-dev/agent/server"
)

// follow begins to follow a log and returns when it has the first line.
func (n *secureNode) follow(t *testing.T, c *http.Client) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+logPath+"?follow=true", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer good")
	resp, err := c.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// Streams beyond the limit get an answer at once, and leave room for other requests. SV-6
func TestServe_LimitsStreams(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) { cfg.MaxConnections, cfg.MaxStreams, cfg.LogDir = 4, 2, t.TempDir() })
	n.log = func(ctx context.Context, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
		_, _ = io.WriteString(stdout, "line\n")
		<-ctx.Done()
		return ctx.Err()
	}
	c := n.client(t)
	first := n.follow(t, c)
	n.follow(t, c)
	for _, p := range []struct{ method, path string }{
		{"GET", logPath},
		{"POST", "/run/default/web/app?cmd=true"},
		{"POST", "/checkpoint/default/web/app"},
		{"GET", "/logs/"},
	} {
		status, header, _ := n.do(t, c, p.method, p.path, "good")
		assert.Equal(t, http.StatusTooManyRequests, status)
		assert.Equal(t, "5", header.Get("Retry-After"))
	}
	status, _, _ := n.do(t, c, http.MethodGet, "/metrics", "good")
	assert.Equal(t, http.StatusOK, status)
	require.NoError(t, first.Body.Close())
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		status, _, _ := n.do(t, c, http.MethodPost, "/run/default/web/app?cmd=true", "good")
		assert.Equal(ct, http.StatusOK, status)
	}, time.Minute, 10*time.Millisecond)
}

// Those who may read the logs of one namespace, or of two, do not keep others from theirs. SV-6
func TestServe_StreamsOfOneNamespaceLeaveSome(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.MaxStreams = 8
		cfg.Pods = func() []*corev1.Pod {
			other, third := testPod(), testPod()
			other.Namespace, third.Namespace = "other", "third"
			return []*corev1.Pod{testPod(), other, third}
		}
	})
	n.log = func(ctx context.Context, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
		_, _ = io.WriteString(stdout, "line\n")
		<-ctx.Done()
		return ctx.Err()
	}
	c := n.client(t)
	follow := func(namespace string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+"/containerLogs/"+namespace+"/web/app?follow=true", http.NoBody)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer good")
		resp, err := c.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp.StatusCode
	}
	for range 5 {
		require.Equal(t, http.StatusOK, follow("default"))
	}
	assert.Equal(t, http.StatusTooManyRequests, follow("default"), "it has more than are free")
	assert.Equal(t, http.StatusOK, follow("other"))
	assert.Equal(t, http.StatusOK, follow("other"))
	assert.Equal(t, http.StatusTooManyRequests, follow("other"), "it has more than are free")
	assert.Equal(t, http.StatusOK, follow("third"))
	assert.Equal(t, http.StatusTooManyRequests, follow("third"), "there is no other")
}

// A reader of a log that accepts nothing is disconnected after the idle timeout. SV-6
func TestServe_DisconnectsSlowReader(t *testing.T) {
	ended := make(chan error, 1)
	n := serveSecure(t, func(cfg *server.Config) { cfg.StreamIdleTimeout = 200 * time.Millisecond })
	n.log = func(_ context.Context, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
		line := []byte(strings.Repeat("x", 32<<10))
		for {
			if _, err := stdout.Write(line); err != nil {
				ended <- err
				return err
			}
		}
	}
	n.follow(t, n.client(t)) // reads nothing
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the reader is still connected")
	}
}

// silentLog has one line, and ends hours later.
type silentLog struct{}

func (silentLog) ReadLog(_ context.Context, _ *corev1.Pod, _ *corev1.PodLogOptions, stdout, _ io.Writer) error {
	_, err := io.WriteString(stdout, "line\n")
	time.Sleep(5 * time.Hour)
	return err
}

// deadlines is a response that knows until when it may be written.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlines) SetReadDeadline(time.Time) error { return nil }

func (d *deadlines) SetWriteDeadline(last time.Time) error {
	d.last = last
	return nil
}

// The client of a stream that was silent for long gets its end: kubectl and clients in Python take a response that is cut off for an error.
func TestServer_SendsTheEndOfSilentStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := server.New(server.Config{
			Addr: loopback, NodeName: "node-1", TLS: &tls.Config{}, Logs: silentLog{}, Pods: func() []*corev1.Pod { return []*corev1.Pod{testPod()} },
			Authenticators: []server.Authenticator{server.AuthenticatorFunc(tokens)},
			Authorizer: server.AuthorizerFunc(func(context.Context, *authenticationv1.UserInfo, *authorizationv1.ResourceAttributes) (bool, error) {
				return true, nil
			}),
		})
		require.NoError(t, err)
		r := httptest.NewRequest(http.MethodGet, logPath+"?follow=true", http.NoBody)
		r.Header.Set("Authorization", "Bearer good")
		r.TLS = &tls.ConnectionState{}
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		s.ServeHTTP(w, r)
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, "line\n", w.Body.String())
		assert.True(t, w.last.After(time.Now()), "%s", w.last)
	})
}

// A stream on which nothing is sent is closed after the idle timeout. SV-3
func TestServe_ClosesIdleStream(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) { cfg.StreamIdleTimeout = 200 * time.Millisecond })
	for name, e := range n.executors(t, "/exec/default/web/app", with(command("hang"), "input", "output")) {
		t.Run(name, func(t *testing.T) {
			for { // a busy machine may take longer than the idle timeout until the command is started
				in, end := io.Pipe()
				defer end.Close()
				_ = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: io.Discard}) // for SPDY, a closed connection is no error
				select {
				case <-n.exited:
					return
				case <-time.After(10 * time.Second):
				}
			}
		})
	}
}

// The end of the server ends streams, and Serve returns after them. SV-3
func TestServe_EndsStreams(t *testing.T) {
	n := serveSecure(t)
	cfg := n.cfg
	cfg.Addr = loopback
	s, err := server.New(cfg)
	require.NoError(t, err)
	addr, end := start(t, s)
	n.addr = addr
	executors := n.executors(t, "/exec/default/web/app", with(command("hang"), "input", "output"))
	started, ended := make(chan struct{}, 3), make(chan error, len(executors))
	for _, e := range executors {
		in, end := io.Pipe()
		defer end.Close()
		out := writerFunc(func(b []byte) (int, error) {
			if len(b) > 0 {
				started <- struct{}{}
			}
			return len(b), nil
		})
		go func() { ended <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out}) }()
	}
	for range executors {
		<-started
	}
	end()
	for range executors {
		<-ended
		<-n.exited
	}
}

// A command can have an argument as long as Linux takes it, encoded for a URL.
func TestServe_LongCommands(t *testing.T) {
	n := serveSecure(t)
	script := strings.Repeat("%20", 64<<10)
	status, _, body := n.do(t, n.client(t), http.MethodPost, "/run/default/web/app?cmd="+script, "good")
	assert.Equal(t, http.StatusOK, status)
	assert.Len(t, body, 64<<10)
}

// Large headers and bodies are rejected. SV-6
func TestServe_LimitsSizes(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+"/healthz", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("X-Large", strings.Repeat("x", 300<<10))
	resp, err := c.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
	read := make(chan error, 1)
	n2 := serveSecure(t, func(cfg *server.Config) {
		cfg.Handlers = map[string]http.Handler{"/upload": http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			read <- err
		})}
	})
	r, err = http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+n2.addr+"/upload", strings.NewReader(strings.Repeat("x", 1<<20)))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer good")
	if resp, err := n2.client(t).Do(r); err == nil { // or the connection is closed while the body is sent
		require.NoError(t, resp.Body.Close())
	}
	var tooLarge *http.MaxBytesError
	require.ErrorAs(t, <-read, &tooLarge)
}

// Clients that only connect leave the handshake after a while.
func TestServe_IdleTLSClients(t *testing.T) {
	n := serveSecure(t)
	cfg := n.cfg
	cfg.MaxConnections = 4
	addr := serve(t, cfg, func(s *server.Server) { s.SetHeaderTimeout(50 * time.Millisecond) })
	for range 8 {
		dial(t, addr)
	}
	n.addr = addr
	c := n.client(t)
	require.EventuallyWithT(t, func(ct *assert.CollectT) { // one that is slow itself has to leave as well
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+"/healthz", http.NoBody)
		require.NoError(ct, err)
		r.Header.Set("Authorization", "Bearer good")
		resp, err := c.Do(r)
		require.NoError(ct, err)
		require.NoError(ct, resp.Body.Close())
		assert.Equal(ct, http.StatusOK, resp.StatusCode)
	}, time.Minute, 10*time.Millisecond)
}
