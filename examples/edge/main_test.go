package main

import (
	"context"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// testFlags are those of a simulated node.
func testFlags(t *testing.T) flags {
	t.Helper()
	return flags{
		server: "https://fleet.example/nodes/edge-1/", tokenFile: tokenFile(t, "secret-1"), rootDir: filepath.Join(t.TempDir(), "root"),
		nodeName: "edge-1", runtime: "simulated", period: 20 * time.Second,
	}
}

// podNames returns the names of the pods in a Set.
func podNames(set podsource.Set) (names []string) {
	for _, m := range set.Pods {
		names = append(names, m.Pod.Name)
	}
	return names
}

func TestServer_Watch(t *testing.T) {
	for name, tt := range map[string]struct {
		fail http.HandlerFunc
		want string
		err  error
	}{
		"a server that is away":     {away, "connection reset", podsource.ErrUnavailable},
		"a server that hangs":       {hang, "deadline exceeded", podsource.ErrUnavailable},
		"a wrong token":             {code(http.StatusUnauthorized), "401 Unauthorized", podsource.ErrUnavailable},
		"an error of the server":    {code(http.StatusInternalServerError), "500 Internal Server Error", podsource.ErrUnavailable},
		"a connection that is lost": {lose(podManifest("web")), "unexpected EOF", podsource.ErrUnavailable},
		"garbage":                   {text("\x00 not: [a manifest"), "", nil},
		"an empty response, which is not an empty list": {text(""), "", podspec.ErrNoDocument},
		"a response that is too large":                  {text(strings.Repeat("#", podsource.DefaultMaxBytes+1)), "", podspec.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, remote := testFlags(t), newFleet(podManifest("web"))
				remote.fail = tt.fail
				srv := &server{f, http.Client{Transport: remote, Timeout: 10 * time.Second}}
				var newest atomic.Pointer[podsource.Set]
				defer start(t, func(ctx context.Context) error {
					return srv.Watch(ctx, func(s podsource.Set) { newest.Store(&s) })
				})()
				requireFailed := func(incomplete bool, pods ...string) {
					t.Helper()
					time.Sleep(2 * f.period)
					synctest.Wait()
					set := *newest.Load()
					require.Equal(t, pods, podNames(set))
					require.Equal(t, incomplete, set.Incomplete)
					require.Len(t, set.Errors, 1)
					require.ErrorContains(t, set.Errors[0].Err, tt.want)
					require.NotContains(t, set.Errors[0].Error(), "secret")
					if tt.err != nil {
						require.ErrorIs(t, set.Errors[0].Err, tt.err)
					}
				}
				requireFailed(true)
				remote.set(func(s *fleet) { s.fail = nil })
				time.Sleep(2 * f.period)
				synctest.Wait()
				set := *newest.Load()
				require.Equal(t, []string{"web"}, podNames(set))
				require.Empty(t, set.Errors)
				require.False(t, set.Incomplete)
				remote.set(func(s *fleet) { s.fail = tt.fail })
				requireFailed(false, "web")
				remote.set(func(s *fleet) { s.fail, s.manifests = nil, podManifest("web")+podManifest("db") })
				time.Sleep(2 * f.period)
				synctest.Wait()
				set = *newest.Load()
				require.Equal(t, []string{"web", "db"}, podNames(set))
				require.Empty(t, set.Errors)
			})
		})
	}
}

func TestServer_SendsETagAndToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, remote := testFlags(t), newFleet(podManifest("web"))
		remote.fail = code(http.StatusNotModified) // although the request has no ETag
		srv := &server{f, http.Client{Transport: remote}}
		var set atomic.Pointer[podsource.Set] // the newest one
		defer start(t, func(ctx context.Context) error {
			return srv.Watch(ctx, func(s podsource.Set) { set.Store(&s) })
		})()
		last := func() podsource.Set {
			time.Sleep(f.period)
			synctest.Wait()
			return *set.Load()
		}
		require.ErrorContains(t, last().Errors[0].Err, "304 Not Modified")
		remote.set(func(s *fleet) { s.fail = nil })
		first := last()
		require.Same(t, first.Pods[0].Pod, last().Pods[0].Pod, "the same pod, which saves a comparison")
		require.Empty(t, last().Errors)
		var etags []string
		remote.set(func(s *fleet) { etags = slices.Clone(s.etags) })
		require.Equal(t, []string{"", `"108"`, `"108"`}, etags)

		remote.set(func(s *fleet) { s.token = "secret-2" })
		require.ErrorContains(t, last().Errors[0].Err, "401")
		require.NoError(t, os.WriteFile(f.tokenFile, []byte("secret-2"), 0o600))
		require.Empty(t, last().Errors, "a new token needs no restart")
		require.NoError(t, os.WriteFile(f.tokenFile, []byte("two\nlines"), 0o600))
		require.NotContains(t, last().Errors[0].Error(), "lines")
		require.NoError(t, os.Remove(f.tokenFile))
		require.ErrorIs(t, last().Errors[0].Err, fs.ErrNotExist)
		require.Equal(t, []string{"web"}, podNames(last()))
	})
}

// SR-9: a node starts the pods of its cache while the server is away, and reports them when it is back.
func TestRun_StartsFromItsCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, remote := testFlags(t), newFleet(podManifest("web"))
		node := func(ctx context.Context) error { return run(ctx, f, remote, slog.New(slog.DiscardHandler)) }
		stop := start(t, node)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"web-edge-1"}, remote.running())
		stop()

		remote.set(func(s *fleet) { s.fail, s.statuses = away, map[string]corev1.Pod{} })
		stop = start(t, node)
		defer func() { stop() }()
		time.Sleep(time.Hour)
		require.Empty(t, remote.running())
		back := time.Now()
		remote.set(func(s *fleet) { s.fail = nil })
		time.Sleep(time.Minute)
		require.Equal(t, []string{"web-edge-1"}, remote.running())
		for _, pod := range remote.statuses {
			started := pod.Status.ContainerStatuses[0].State.Running.StartedAt
			require.Greater(t, back.Sub(started.Time), 50*time.Minute, "it was started without the server")
		}

		remote.set(func(s *fleet) { s.manifests = podManifest("database") })
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"database-edge-1"}, remote.running())
		require.Equal(t, 1, remote.deleted, "the server is informed that the other pod has ended")
		require.Len(t, remote.statuses, 1)
	})
}

// A status that the server does not have any more is deleted once.
func TestRun_DeletesStatusesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, remote := testFlags(t), newFleet(podManifest("web")+podManifest("db"))
		defer start(t, func(ctx context.Context) error { return run(ctx, f, remote, slog.New(slog.DiscardHandler)) })()
		time.Sleep(time.Minute)
		remote.set(func(s *fleet) { clear(s.statuses); s.manifests = podManifest("web") })
		time.Sleep(time.Hour)
		require.Equal(t, 1, remote.deleted)
	})
}

func TestRun_ResendsStatuses(t *testing.T) {
	for name, fail := range map[string]http.HandlerFunc{
		"a server that is away": away, "a server that hangs": hang, "a wrong token": code(http.StatusUnauthorized),
		"an error of the server": code(http.StatusInternalServerError), "not found": code(http.StatusNotFound), "not modified": code(http.StatusNotModified),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, remote := testFlags(t), newFleet(podManifest("web")+podManifest("db"))
				remote.failPUT = fail
				defer start(t, func(ctx context.Context) error { return run(ctx, f, remote, slog.New(slog.DiscardHandler)) })()
				time.Sleep(time.Hour)
				require.Empty(t, remote.running())
				remote.set(func(s *fleet) { s.failPUT = nil })
				time.Sleep(time.Minute)
				require.ElementsMatch(t, []string{"web-edge-1", "db-edge-1"}, remote.running())
			})
		})
	}
}

// SR-4: neither garbage nor a pod that is invalid stops the pods that run.
func TestRun_KeepsPodsOfInvalidManifests(t *testing.T) {
	for name, manifests := range map[string]string{
		"garbage":             "\x00 not: [a manifest",
		"an invalid pod":      "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: []}\n",
		"an empty response":   "",
		"a duplicate pod":     podManifest("web") + podManifest("web"),
		"a page of a gateway": "<html><body>Please log in</body></html>",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, remote := testFlags(t), newFleet(podManifest("web"))
				defer start(t, func(ctx context.Context) error { return run(ctx, f, remote, slog.New(slog.DiscardHandler)) })()
				time.Sleep(time.Minute)
				before := remote.reported()
				require.Len(t, before, 1)
				remote.set(func(s *fleet) { s.manifests = manifests })
				time.Sleep(time.Hour)
				require.Equal(t, before, remote.reported(), "the same container")
				require.Zero(t, remote.deleted)
			})
		})
	}
}

func TestRun_RejectsFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(*flags)
		want string
	}{
		"no server":                   {func(f *flags) { f.server = "" }, "-server: must be https"},
		"a token in plain text":       {func(f *flags) { f.server = "http://fleet.example" }, "plain text"},
		"another scheme":              {func(f *flags) { f.server = "ftp://127.0.0.1" }, "-server: must be https"},
		"not a URL":                   {func(f *flags) { f.server = "https://fleet\x00" }, "-server: must be https"},
		"no such runtime":             {func(f *flags) { f.runtime = "docker" }, `-runtime "docker": must be simulated, host or unix:///path`},
		"a root that is not absolute": {func(f *flags) { f.rootDir = "edge" }, "edge"},
	} {
		t.Run(name, func(t *testing.T) {
			f := testFlags(t)
			tt.set(&f)
			require.ErrorContains(t, run(t.Context(), f, nil, slog.New(slog.DiscardHandler)), tt.want)
		})
	}
}

// An error of the agent is that of run.
func TestRun_ReturnsErrors(t *testing.T) {
	f := testFlags(t)
	require.NoError(t, os.WriteFile(f.rootDir, nil, 0o600))
	require.Error(t, run(t.Context(), f, newFleet(""), slog.New(slog.DiscardHandler)))
	require.NotErrorIs(t, run(t.Context(), f, newFleet(""), slog.New(slog.DiscardHandler)), agent.ErrNoRuntime)
}
