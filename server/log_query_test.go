package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/server"
)

// fakeServices has logs of kubelet and containerd. It keeps the last query.
type fakeServices struct {
	asked *server.LogQuery
	err   error
}

func (f *fakeServices) Having(_ context.Context, services []string) (having []string, err error) {
	for _, s := range services {
		if slices.Contains([]string{"kubelet", "containerd"}, s) {
			having = append(having, s)
		}
	}
	return having, f.err
}

func (f *fakeServices) Read(_ context.Context, q *server.LogQuery, w io.Writer) error {
	f.asked = q
	_, err := io.WriteString(w, "journal of "+strings.Join(q.Services, ",")+"\n")
	return err
}

// serveServices serves a fakeServices and a directory with files of other services.
func serveServices(t *testing.T) (*fakeServices, func(query string) (int, string)) {
	t.Helper()
	logs := t.TempDir()
	for name, text := range map[string]string{"syslog": "of syslog", "cron.log": "of cron", "nginx/nginx.log": "of nginx"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(logs, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(logs, name), []byte(text), 0o600))
	}
	f := &fakeServices{}
	n := serveSecure(t, func(cfg *server.Config) { cfg.LogDir, cfg.ServiceLogs = logs, f })
	c := n.client(t)
	return f, func(query string) (int, string) {
		status, header, body := n.do(t, c, http.MethodGet, "/logs"+query, "good")
		if status == http.StatusOK && !strings.Contains(body, "<pre>") {
			assert.Equal(t, "text/plain; charset=utf-8", header.Get("Content-Type"), query)
		}
		return status, body
	}
}

func TestServer_LogQuery(t *testing.T) {
	f, get := serveServices(t)
	for query, want := range map[string]string{
		"?query=kubelet":                     "journal of kubelet\n",
		"/?query=kubelet&query=containerd":   "journal of kubelet,containerd\n",
		"/?query=syslog":                     "of syslog",
		"/?query=cron":                       "of cron",
		"/?query=nginx":                      "of nginx",
		"/?query=/syslog":                    "of syslog",
		"/?query=nginx/nginx.log":            "of nginx",
		`/?query=nginx%5Cnginx.log`:          "of nginx",
		"/?query=kubelet&query=cron":         "journal of kubelet\nof cron",
		"/?query=nothing":                    "\nlog of nothing: not found: neither journal nor file\n",
		"/?query=..":                         "\nlog of ..: not found: neither journal nor file\n",
		"/?query=nginx&tailLines=1":          "\nno journal of nginx; query it without options for its file\n",
		"/cron.log":                          "of cron",
		"/?query=kubelet&pattern=a%7Cb&boot": "journal of kubelet\n",
	} {
		status, body := get(query)
		assert.Equal(t, http.StatusOK, status, query)
		assert.Equal(t, want, body, query)
	}
	_, body := get("/")
	assert.Contains(t, body, "syslog</a>", "a listing")

	_, _ = get("/?query=kubelet&sinceTime=2026-01-02T05:00:00%2B02:00&untilTime=2026-01-03T00:00:00Z&tailLines=10&boot=-1&pattern=err")
	ten, before := 10, -1
	since := f.asked.Since
	assert.True(t, since.Equal(time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)))
	assert.Equal(t, &server.LogQuery{
		Services: []string{"kubelet"}, Since: since, Until: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC), Tail: &ten, Boot: &before, Pattern: "err",
	}, f.asked)

	f.err = errors.New("no journal")
	_, body = get("/?query=cron")
	assert.Equal(t, "of cron", body)
	_, body = get("/?query=nothing")
	assert.Contains(t, body, "neither journal nor file\nno journal")
}

func TestServer_LogQueryErrors(t *testing.T) {
	f, get := serveServices(t)
	long := strings.Repeat("a", 257)
	for query, want := range map[string]int{
		"/?query=": 400, "/?query=%20": 400, "/?query=a&sinceTime=yesterday": 400, "/?query=a&boot=x": 400, "/?query=a&tailLines=1.5": 400,
		"/cron.log?query=a": 406, "/?tailLines=1": 406, "/?query=a/b&query=c": 406, "/?query=a/b&query=c/d": 406, "/?query=/syslog&tailLines=1": 406,
		"/?query=a&query=b&query=c&query=d&query=e": 406, "/?query=-a%3Bb": 406, "/?query=" + long: 406, "/?query=a%0Ab": 406,
		"/?query=a&boot=1": 406, "/?query=a&tailLines=-1": 406, "/?query=a&tailLines=100001": 406, "/?query=a&pattern=(": 406, "/?query=a&pattern=%00": 406,
		"/?query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z": 406, "/?query=/../secret": 404, "/?query=/missing": 404,
	} {
		status, body := get(query)
		assert.Equal(t, want, status, "%s: %s", query, body)
	}
	assert.Nil(t, f.asked)
	_, err := server.New(server.Config{Addr: "127.0.0.1:0", ServiceLogs: f})
	require.ErrorContains(t, err, "ServiceLogs needs LogDir")
}

// journalctl is called with the query, and nothing of it is taken for something else.
func TestJournal(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\ncase \"$*\" in *--field*) printf 'kubelet.service\\nkubelet2.service\\na.socket\\n';; *) printf '%s\\n' \"$@\"; echo problem >&2; exit 1;; esac\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journalctl"), []byte(script), 0o755)) //nolint:gosec // a program
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	having, err := server.Journal{}.Having(t.Context(), []string{"kubelet", "kube", "a.socket", "a"})
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"kubelet", "a.socket"}, having)

	var out strings.Builder
	tail, boot := 5, 0
	east := time.FixedZone("east", 3600)
	q := &server.LogQuery{Services: []string{"-a", "b"}, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, east), Until: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC), Tail: &tail, Boot: &boot, Pattern: "--x y"}
	require.NoError(t, server.Journal{}.Read(t.Context(), q, &out))
	assert.Equal(t, []string{
		"--utc", "--no-pager", "--output=short-precise", "--since=2026-01-02 02:04:05 UTC", "--until=2026-01-03 00:00:00 UTC", "--lines=5",
		"--unit=-a", "--unit=b", "--grep=--x y", "--boot=0", "problem",
	}, strings.Split(strings.TrimSpace(out.String()), "\n"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, server.Journal{}.Read(ctx, q, &out))
	t.Setenv("PATH", t.TempDir())
	_, err = server.Journal{}.Having(t.Context(), []string{"a"})
	require.ErrorContains(t, err, "read the journal")
	require.ErrorContains(t, server.Journal{}.Read(t.Context(), q, &out), "journalctl")
}
