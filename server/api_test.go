package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/server"
)

// SV-14
func TestServer_Pages(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	get := func(method, path string) (string, string) {
		status, header, body := n.do(t, c, method, path, "good")
		require.Equal(t, http.StatusOK, status, path)
		return header.Get("Content-Type"), body
	}
	for _, path := range []string{"/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"} {
		kind, body := get(http.MethodGet, path)
		assert.Equal(t, "ok", body)
		assert.Equal(t, "text/plain; charset=utf-8", kind)
	}
	kind, body := get(http.MethodGet, "/runningpods/")
	assert.Equal(t, "application/json", kind)
	var list corev1.PodList
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	require.Len(t, list.Items, 1)
	kind, body = get(http.MethodGet, "/configz")
	assert.Equal(t, "application/json", kind)
	assert.JSONEq(t, `{"kubeletconfig": {"rootDir": "/var/lib/sublet"}}`, body)
	_, body = get(http.MethodGet, "/flagz")
	assert.Contains(t, body, "\n\nnode=n\nv=2\n")
	kind, body = get(http.MethodGet, "/statusz")
	assert.Equal(t, "text/plain; charset=utf-8", kind)
	assert.Contains(t, body, "/exec/{namespace}/{pod}/{container}\n")
	assert.Contains(t, body, "\n/metrics\n")
	assert.NotContains(t, body, "/logs/", "disabled")
	assert.Contains(t, body, "Go version: go1")
	for query, want := range map[string]string{"": "false", "?only_cpu_and_memory=true": "true", "?only_cpu_and_memory=1": "false", "?only_cpu_and_memory=true&only_cpu_and_memory=true": "false", "?only_cpu_and_memory=false": "false"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			kind, body = get(method, "/stats/summary"+query)
			assert.Equal(t, "application/json", kind)
			assert.JSONEq(t, `{"only": `+want+`}`, body)
		}
	}
	kind, body = get(http.MethodPost, "/run/default/web/app?cmd=ls%20-l")
	assert.Equal(t, "application/json", kind)
	assert.Equal(t, "ls|-l", body)
	kind, body = get(http.MethodPost, "/checkpoint/default/web/debug?timeout=1&timeout=7")
	assert.Equal(t, "application/json", kind)
	assert.JSONEq(t, `{"items": ["/var/lib/kubelet/checkpoints/a.tar"]}`, body)
	assert.Contains(t, n.calls, "checkpoint web/debug 7s")
	for path, want := range map[string]int{
		"/run/default/web/app?cmd=false": 500, "/run/default/web/other?cmd=a": 404, "/run/default/other/app?cmd=a": 404,
		"/checkpoint/default/web/other": 404, "/checkpoint/default/web/app?timeout=x": 400, "/checkpoint/default/web/app?timeout=-1": 400,
		"/stats/summary?only_cpu_and_memory=%zz": 400, "/checkpoint/default/web/app?timeout=3600": 501, "/checkpoint/default/web/app?timeout=0": 200,
	} {
		status, _, body := n.do(t, c, http.MethodPost, path, "good")
		assert.Equal(t, want, status, path)
		switch want {
		case 500:
			assert.Equal(t, "exit code 1\noutput\n", body)
		case 501:
			assert.Regexp(t, `^checkpointing of default/web/app failed \(.+\)\n$`, body)
		}
	}
}

// SV-14: a kubelet answers with a slash at the end, too, with the same rights.
func TestServer_SlashAtTheEnd(t *testing.T) {
	n := serveSecure(t)
	c := n.client(t)
	for path, right := range map[string]string{
		"/pods/": "get pods", "/stats/summary/": "get stats", logPath + "/": "get proxy", "/containerLogs/default/web/app%2f": "get proxy", "/nowhere/": "get proxy", "/": "get proxy",
	} {
		n.calls = nil
		status, _, body := n.do(t, c, http.MethodGet, path, "good")
		want := http.StatusOK
		if right == "get proxy" && path != logPath+"/" {
			want = http.StatusNotFound
		}
		assert.Equal(t, want, status, "%s: %s", path, body)
		assert.Equal(t, "authorize good "+right, n.calls[0], path)
		status, _, _ = n.do(t, c, http.MethodGet, path, "powerless")
		assert.Equal(t, http.StatusForbidden, status, path)
	}
	status, header, _ := n.do(t, c, http.MethodGet, "/runningpods", "good")
	assert.Equal(t, http.StatusTemporaryRedirect, status)
	assert.Equal(t, "/runningpods/", header.Get("Location"))
}

// SV-14
func TestServer_ErrorsOfTheNode(t *testing.T) {
	var err error
	var mu sync.Mutex
	checked := map[string]error{}
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.Hooks.HealthChecked = func(endpoint, check string, err error) {
			mu.Lock()
			defer mu.Unlock()
			checked[endpoint+" "+check] = err
			panic("a defect of the embedder's")
		}
		cfg.Summary = func(context.Context, bool) (any, error) { return nil, err }
		cfg.RunningPods = func(context.Context) ([]*corev1.Pod, error) { return nil, err }
		cfg.Checks = []server.HealthCheck{{Name: "a", Check: func() error { return nil }}, {Name: "b", Check: func() error { return err }}}
	})
	c := n.client(t)
	for _, tt := range []struct {
		err  error
		want int
	}{
		{errors.New("x"), 500}, {runtime.ErrNotFound, 404}, {runtime.ErrUnsupported, 501}, {runtime.ErrInvalid, 400}, {runtime.ErrUnavailable, 503}, {runtime.ErrNotReady, 503},
	} {
		err = fmt.Errorf("query: %w", tt.err)
		for _, path := range []string{"/stats/summary", "/runningpods/"} {
			status, _, body := n.do(t, c, http.MethodGet, path, "good")
			assert.Equal(t, tt.want, status)
			assert.Equal(t, err.Error()+"\n", body)
		}
	}
	assert.Empty(t, checked)
	for path, want := range map[string]int{"/healthz": 500, "/healthz/a": 200, "/healthz/b": 500, "/healthz?exclude=b": 200, "/healthz?exclude=a": 500, "/healthz/c": 404} {
		status, _, body := n.do(t, c, http.MethodGet, path, "good")
		assert.Equal(t, want, status, path)
		if want == 500 {
			assert.Equal(t, "[-] b: "+err.Error()+"\n", body)
		}
	}
	assert.Equal(t, map[string]error{"healthz ping": nil, "healthz log": nil, "healthz a": nil, "healthz b": err}, checked)
}

// What the node cannot do is disabled, as in a kubelet.
func TestServer_DisabledPaths(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.Logs, cfg.Streams, cfg.Commands, cfg.Checkpointer = nil, nil, nil, nil
		cfg.RunningPods, cfg.Summary, cfg.Configz, cfg.Flagz, cfg.Handlers, cfg.Checks, cfg.UI = nil, nil, nil, nil, nil, nil, nil
	})
	c := n.client(t)
	for _, p := range paths {
		want := http.StatusMethodNotAllowed
		switch p.path {
		case "/healthz", "/healthz/ping", "/healthz/log", "/statusz", "/problems":
			want = http.StatusOK
		case "/pods":
			want = p.status
		case "/nowhere", "/metrics", "/healthz/syncloop":
			want = http.StatusNotFound
		}
		status, _, _ := n.do(t, c, p.method, p.path, "good")
		assert.Equal(t, want, status, "%s %s", p.method, p.path)
	}
}

// Files of the log directory are served, and nothing outside of it.
func TestServer_NodeLogs(t *testing.T) {
	dir := t.TempDir()
	logs, secret := filepath.Join(dir, "log"), filepath.Join(dir, "secret")
	require.NoError(t, os.MkdirAll(filepath.Join(logs, "pods"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(logs, "pods", "0.log"), []byte("a line"), 0o600))
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(secret, filepath.Join(logs, "link")))
	// As a kubelet lays out the logs of containers.
	require.NoError(t, os.Mkdir(filepath.Join(logs, "containers"), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(logs, "pods", "0.log"), filepath.Join(logs, "containers", "c.log")))
	require.NoError(t, os.Symlink(filepath.Join(logs, "containers", "c.log"), filepath.Join(logs, "twice")))
	require.NoError(t, os.Symlink(filepath.Join(logs, "endless"), filepath.Join(logs, "endless")))
	require.NoError(t, os.Symlink(filepath.Join(logs, "..", "secret"), filepath.Join(logs, "out")))
	require.NoError(t, os.Symlink(filepath.Join(logs, "link"), filepath.Join(logs, "toLink")))
	n := serveSecure(t, func(cfg *server.Config) { cfg.LogDir = logs })
	c := n.client(t)
	for _, path := range []string{"/logs/pods/0.log", "/logs/containers/c.log", "/logs/twice"} {
		status, _, body := n.do(t, c, http.MethodGet, path, "good")
		assert.Equal(t, http.StatusOK, status, path)
		assert.Equal(t, "a line", body, path)
	}
	status, _, body := n.do(t, c, http.MethodGet, "/logs/", "good")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, `<a href="pods/">`)
	require.NoError(t, unix.Mkfifo(filepath.Join(logs, "fifo"), 0o600))
	for _, path := range []string{"/logs/link", "/logs/out", "/logs/toLink", "/logs/endless", "/logs/..%2fsecret", "/logs/missing", "/logs/fifo"} {
		status, _, body = n.do(t, c, http.MethodGet, path, "good")
		assert.NotEqual(t, http.StatusOK, status, path)
		assert.NotEqual(t, "secret", body, path)
	}
	require.NoError(t, os.RemoveAll(logs))
	status, _, _ = n.do(t, c, http.MethodGet, "/logs/", "good")
	assert.Equal(t, http.StatusInternalServerError, status)
}

// A device in the log directory, which a container that has it mounted can make, is not opened.
func TestServer_NodeLogsOpenNoDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a device")
	}
	logs := t.TempDir()
	// Of a number that no driver has, which only an attempt to open it shows.
	require.NoError(t, unix.Mknod(filepath.Join(logs, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(511, 511))))
	n := serveSecure(t, func(cfg *server.Config) { cfg.LogDir = logs })
	status, _, _ := n.do(t, n.client(t), http.MethodGet, "/logs/device", "good")
	assert.Equal(t, http.StatusForbidden, status)
}

// What a file in the log directory contains is no page of the server's origin.
func TestServer_NodeLogsAreNoPages(t *testing.T) {
	const text, content = "text/plain; charset=utf-8", "<!doctype html><script>alert(1)</script>"
	logs := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(logs, "dir"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(logs, "d.gz"), 0o755))
	n := serveSecure(t, func(cfg *server.Config) { cfg.LogDir = logs })
	c := n.client(t)
	for path, want := range map[string]string{
		"a.html": text, "syslog": text, "a.svg": text, "a.log": text, "dir/index.html": text,
		"a.log.gz": "application/gzip", "a.log.xz": "application/octet-stream", "a.bz2": "application/octet-stream", "a.zst": "application/octet-stream",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(logs, path), []byte(content), 0o600))
		status, header, body := n.do(t, c, http.MethodGet, "/logs/"+strings.TrimSuffix(path, "index.html"), "good")
		assert.Equal(t, http.StatusOK, status, path)
		assert.Equal(t, content, body, path)
		assert.Equal(t, want, header.Get("Content-Type"), path)
		assert.Empty(t, header.Get("Content-Encoding"), path)
		assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"), path)
		assert.Regexp(t, "^sandbox(; | allow-downloads; )default-src 'none'$", header.Get("Content-Security-Policy"), path)
	}
	for _, path := range []string{"/logs/", "/logs/d.gz/"} {
		_, header, body := n.do(t, c, http.MethodGet, path, "good")
		assert.Equal(t, "text/html; charset=utf-8", header.Get("Content-Type"), "a listing")
		assert.Contains(t, body, "<pre>")
		assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
		assert.Equal(t, "sandbox allow-downloads; default-src 'none'", header.Get("Content-Security-Policy"), "files can be saved from it")
	}
}
