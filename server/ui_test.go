package server_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/server"
)

// The page is mounted below /ui/, for everybody who may read the pods: on loopback without
// TLS, for all users of the machine.
func TestServer_UI(t *testing.T) {
	n := newFakeNode(t)
	addr := serve(t, n.config())
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(client.CloseIdleConnections)
	get := func(path string) (*http.Response, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody)
		require.NoError(t, err)
		resp, err := client.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp, string(b)
	}
	resp, _ := get("/ui")
	assert.Equal(t, "ui/", resp.Header.Get("Location"), "relative, for proxies")
	for path, want := range map[string]string{"/ui/": "page /", "/ui/pods/x": "page /pods/x", "/ui/events": "page /events"} {
		_, body := get(path)
		assert.Equal(t, want, body)
	}
	cfg := n.config()
	cfg.UI = nil
	addr = serve(t, cfg)
	resp, _ = get("/ui/")
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode, "off by default")
}

// The events of the page take a slot of the streams, and nothing else of it does.
func TestServer_UIEventsAreStreams(t *testing.T) {
	n := newFakeNode(t)
	cfg := n.config()
	cfg.MaxStreams = 1
	inside, release := make(chan struct{}), make(chan struct{})
	cfg.UI = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			inside <- struct{}{}
			<-release
		}
	})
	addr := serve(t, cfg)
	client := &http.Client{}
	t.Cleanup(client.CloseIdleConnections)
	status := func(path string) int {
		r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, "http://"+addr+path, http.NoBody)
		if !assert.NoError(t, err) {
			return 0
		}
		resp, err := client.Do(r)
		if !assert.NoError(t, err) {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	first := make(chan int)
	go func() { first <- status("/ui/events") }()
	<-inside
	assert.Equal(t, http.StatusTooManyRequests, status("/ui/events"))
	assert.Equal(t, http.StatusOK, status("/ui/state"))
	close(release)
	assert.Equal(t, http.StatusOK, <-first)
}

// Profiles are for who may use everything, by TLS, and when they are on.
func TestServer_Profiles(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) { cfg.Profiling = true })
	c := n.client(t)
	status, _, body := n.do(t, c, http.MethodGet, "/debug/pprof/", "good")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, "goroutine ")
	status, header, body := n.do(t, c, http.MethodGet, "/debug/pprof/goroutine?debug=1", "good")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "text/plain; charset=utf-8", header.Get("Content-Type"))
	assert.Contains(t, body, "TestServer_Profiles")
	for path, want := range map[string]int{
		"/debug/pprof/heap": 200, "/debug/pprof/profile?seconds=0.05": 200, "/debug/pprof/trace?seconds=0.05": 200,
		"/debug/pprof/cmdline": 404, "/debug/pprof/profile?seconds=0": 400, "/debug/pprof/trace?seconds=301": 400, "/debug/pprof/trace?seconds=x": 400,
	} {
		status, header, body = n.do(t, c, http.MethodGet, path, "good")
		assert.Equal(t, want, status, path)
		if want == http.StatusOK {
			assert.Equal(t, "application/octet-stream", header.Get("Content-Type"), path)
			assert.NotEmpty(t, body, path)
		}
	}
	status, _, _ = n.do(t, c, http.MethodGet, "/debug/pprof/heap", "powerless")
	assert.Equal(t, http.StatusForbidden, status)

	plain := n.config()
	plain.Profiling = true
	resp, err := http.Get("http://" + serve(t, plain) + "/debug/pprof/heap") //nolint:noctx // a test
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, http.StatusForbidden, resp.StatusCode, string(b))
	assert.True(t, strings.Contains(string(b), "TLS"))
}
