package pluginregistry_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	api "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/pluginregistry"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// testTimeout bounds what a test waits for on a busy machine.
const testTimeout = 60 * time.Second

// fakePlugin is a plugin that registers.
type fakePlugin struct {
	api.UnimplementedRegistrationServer

	info    *api.PluginInfo
	hang    bool
	deaf    atomic.Bool // fails when it gets its answer
	mu      sync.Mutex
	answers []*api.RegistrationStatus
	hosts   []string // that GetInfo was called as
}

func (p *fakePlugin) GetInfo(ctx context.Context, _ *api.InfoRequest) (*api.PluginInfo, error) {
	if p.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hosts = append(p.hosts, metadata.ValueFromIncomingContext(ctx, ":authority")...)
	return p.info, nil
}

func (p *fakePlugin) NotifyRegistrationStatus(_ context.Context, s *api.RegistrationStatus) (*api.RegistrationStatusResponse, error) {
	p.mu.Lock()
	p.answers = append(p.answers, s)
	p.mu.Unlock()
	if p.deaf.Load() {
		return nil, errors.New("no thanks")
	}
	return &api.RegistrationStatusResponse{}, nil
}

func (p *fakePlugin) lastAnswer() *api.RegistrationStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.answers) == 0 {
		return nil
	}
	return p.answers[len(p.answers)-1]
}

// serve serves the plugin until stop is called, which removes the socket.
func (p *fakePlugin) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	s := grpc.NewServer()
	api.RegisterRegistrationServer(s, p)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

func plugin(name string) *fakePlugin {
	return &fakePlugin{info: &api.PluginInfo{Type: "CSIPlugin", Name: name, Endpoint: "/csi.sock", SupportedVersions: []string{"1.0.0"}}}
}

// recorder is a handler that remembers what is registered.
type recorder struct {
	mu      sync.Mutex
	plugins map[string]pluginregistry.Plugin
	reject  error
	panics  bool

	deregisterPanics bool
}

func (r *recorder) Register(_ context.Context, p pluginregistry.Plugin) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.panics {
		panic("no such luck")
	}
	if r.reject == nil {
		r.plugins[p.Socket] = p
	}
	return r.reject
}

func (r *recorder) Deregister(_ context.Context, p pluginregistry.Plugin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.plugins, p.Socket)
	if r.deregisterPanics {
		panic("no such luck")
	}
}

func (r *recorder) names() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]string{}
	for socket, p := range r.plugins {
		out[filepath.Base(socket)] = p.Name
	}
	return out
}

func (r *recorder) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// start runs a Registry on a short directory, as paths of sockets have to be.
func start(t *testing.T) (string, *recorder) {
	t.Helper()
	h := &recorder{plugins: map[string]pluginregistry.Plugin{}}
	return startWith(t, h), h
}

func startWith(t *testing.T, h pluginregistry.Handler) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg") //nolint:usetesting // its name is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	r, err := pluginregistry.New(pluginregistry.Config{
		Dir: filepath.Join(dir, "r"), Handlers: map[string]pluginregistry.Handler{"CSIPlugin": h},
		RescanPeriod: 20 * time.Millisecond, CallTimeout: time.Minute, RetryPeriod: 10 * time.Millisecond,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "r")); return err == nil }, testTimeout, time.Millisecond)
	return filepath.Join(dir, "r")
}

func become(t *testing.T, h *recorder, want map[string]string) {
	t.Helper()
	require.Eventually(t, func() bool { return assert.ObjectsAreEqual(want, h.names()) }, testTimeout, 5*time.Millisecond, "%v", want)
}

func TestRun_RegistersAndDeregisters(t *testing.T) {
	dir, h := start(t)
	one, two := plugin("one"), plugin("two")
	stop := one.serve(t, filepath.Join(dir, "one.sock"))
	two.info.Endpoint = "" // the registration socket itself
	require.NoError(t, os.Mkdir(filepath.Join(dir, "below"), 0o700))
	two.serve(t, filepath.Join(dir, "below", "two.sock"))
	plugin("hidden").serve(t, filepath.Join(dir, ".hidden.sock"))
	become(t, h, map[string]string{"one.sock": "one", "two.sock": "two"})
	require.Eventually(t, func() bool { return one.lastAnswer().GetPluginRegistered() }, testTimeout, time.Millisecond)
	one.mu.Lock()
	assert.Equal(t, []string{"localhost"}, one.hosts, "servers that are not written in Go reject a path")
	one.mu.Unlock()
	h.set(func() {
		assert.Equal(t, filepath.Join(dir, "below", "two.sock"), h.plugins[filepath.Join(dir, "below", "two.sock")].Endpoint)
		assert.Equal(t, pluginregistry.Plugin{Socket: filepath.Join(dir, "one.sock"), Type: "CSIPlugin", Name: "one", Endpoint: "/csi.sock", Versions: []string{"1.0.0"}},
			h.plugins[filepath.Join(dir, "one.sock")])
	})
	stop()
	become(t, h, map[string]string{"two.sock": "two"})
	plugin("next").serve(t, filepath.Join(dir, "one.sock"))
	become(t, h, map[string]string{"one.sock": "next", "two.sock": "two"})
}

// A socket that another one replaces between two scans is another plugin.
func TestRun_NoticesReplacedSockets(t *testing.T) {
	dir, h := start(t)
	plugin("old").serve(t, filepath.Join(dir, "a.sock"))
	become(t, h, map[string]string{"a.sock": "old"})
	plugin("new").serve(t, filepath.Join(dir, ".new.sock"))
	require.NoError(t, os.Rename(filepath.Join(dir, ".new.sock"), filepath.Join(dir, "a.sock")))
	become(t, h, map[string]string{"a.sock": "new"})
}

// A plugin that hangs delays no other.
func TestRun_HungPluginsDelayNoOther(t *testing.T) {
	dir, h := start(t)
	hung := plugin("hung")
	hung.hang = true
	hung.serve(t, filepath.Join(dir, "a.sock"))
	plugin("well").serve(t, filepath.Join(dir, "b.sock"))
	become(t, h, map[string]string{"b.sock": "well"})
}

func TestRun_AnswersRejectedPlugins(t *testing.T) {
	dir, h := start(t)
	for name, tc := range map[string]struct {
		change func(*api.PluginInfo)
		want   string
	}{
		"type":     {func(i *api.PluginInfo) { i.Type = "Toaster" }, `plugin type "Toaster"`},
		"name":     {func(i *api.PluginInfo) { i.Name = "" }, "plugin name: required"},
		"endpoint": {func(i *api.PluginInfo) { i.Endpoint = "csi.sock" }, `endpoint "csi.sock" must be an absolute path`},
	} {
		t.Run(name, func(t *testing.T) {
			p := plugin(name)
			tc.change(p.info)
			p.serve(t, filepath.Join(dir, name+".sock"))
			require.Eventually(t, func() bool { return p.lastAnswer() != nil }, testTimeout, time.Millisecond)
			assert.Contains(t, p.lastAnswer().GetError(), tc.want)
			assert.False(t, p.lastAnswer().GetPluginRegistered())
			assert.Empty(t, h.names())
		})
	}
}

// What the handler rejects is tried again; so is what it panics for.
func TestRun_RetriesRejectedPlugins(t *testing.T) {
	dir, h := start(t)
	h.set(func() { h.reject = errors.New("not now") })
	p := plugin("later")
	p.serve(t, filepath.Join(dir, "a.sock"))
	require.Eventually(t, func() bool { return p.lastAnswer().GetError() == "not now" }, testTimeout, time.Millisecond)
	h.set(func() { h.panics = true })
	require.Eventually(t, func() bool { return p.lastAnswer().GetError() != "not now" }, testTimeout, time.Millisecond)
	h.set(func() { h.reject, h.panics = nil, false })
	become(t, h, map[string]string{"a.sock": "later"})
}

// An error of a handler, which may have the answer of a plugin, floods neither the plugin nor logs.
func TestRun_BoundsErrors(t *testing.T) {
	dir, h := start(t)
	h.set(func() { h.reject = errors.New("no power: " + strings.Repeat("x", 1<<20)) })
	p := plugin("a")
	p.serve(t, filepath.Join(dir, "a.sock"))
	require.Eventually(t, func() bool { return p.lastAnswer() != nil }, testTimeout, time.Millisecond)
	assert.True(t, strings.HasPrefix(p.lastAnswer().GetError(), "no power: xxx"))
	assert.Less(t, len(p.lastAnswer().GetError()), 2048)
}

// A plugin that does not take its registration is not registered.
func TestRun_TakesBackWhatIsNotTaken(t *testing.T) {
	dir, h := start(t)
	p := plugin("shy")
	p.deaf.Store(true)
	p.serve(t, filepath.Join(dir, "a.sock"))
	require.Eventually(t, func() bool { return p.lastAnswer() != nil }, testTimeout, time.Millisecond)
	become(t, h, map[string]string{})
	p.deaf.Store(false)
	become(t, h, map[string]string{"a.sock": "shy"})
}

// A handler that panics when it loses a plugin, in one way or the other, ends nothing else.
func TestRun_SurvivesPanicsOfDeregister(t *testing.T) {
	dir, h := start(t)
	p := plugin("shy")
	h.set(func() { h.deregisterPanics = true })
	p.deaf.Store(true)
	stop := p.serve(t, filepath.Join(dir, "a.sock"))
	require.Eventually(t, func() bool { return p.lastAnswer() != nil }, testTimeout, time.Millisecond)
	p.deaf.Store(false)
	become(t, h, map[string]string{"a.sock": "shy"})
	stop()
	become(t, h, map[string]string{})
	plugin("next").serve(t, filepath.Join(dir, "b.sock"))
	become(t, h, map[string]string{"b.sock": "next"})
}

// slowHandler takes long to deregister the plugin "one": until proceed is closed.
type slowHandler struct {
	proceed chan struct{}
	begun   chan struct{} // has a value when a deregistration of "one" has begun

	mu    sync.Mutex
	calls []string
}

func (h *slowHandler) called(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, call)
}

func (h *slowHandler) count(call string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (h *slowHandler) Register(_ context.Context, p pluginregistry.Plugin) error {
	h.called("register " + p.Name)
	return nil
}

func (h *slowHandler) Deregister(_ context.Context, p pluginregistry.Plugin) {
	if p.Name == "one" {
		h.begun <- struct{}{}
		<-h.proceed
	}
	h.called("deregister " + p.Name)
}

// A plugin that comes back is registered after the last one at its socket is deregistered,
// however many scans there are meanwhile, and however often it goes.
func TestRun_OrdersCallsOfOneSocket(t *testing.T) {
	h := &slowHandler{proceed: make(chan struct{}), begun: make(chan struct{}, 10)}
	dir := startWith(t, h)
	proceed := sync.OnceFunc(func() { close(h.proceed) })
	t.Cleanup(proceed)
	register := func(name string) (stop func()) {
		stop = plugin(name).serve(t, filepath.Join(dir, name+".sock"))
		require.Eventually(t, func() bool { return h.count("register "+name) == 1 }, testTimeout, time.Millisecond)
		return stop
	}
	register("one")()
	<-h.begun
	for _, scanned := range []string{"two", "three", "four"} { // each is found by a later scan
		stop := plugin("one").serve(t, filepath.Join(dir, "one.sock"))
		register(scanned)
		if scanned != "four" {
			stop()
		}
		register(scanned + "-too")
	}
	require.Equal(t, 1, h.count("register one"))
	proceed()
	require.Eventually(t, func() bool { return h.count("register one") == 2 }, testTimeout, time.Millisecond)
	h.mu.Lock()
	defer h.mu.Unlock()
	of := slices.DeleteFunc(slices.Clone(h.calls), func(c string) bool { return !strings.HasSuffix(c, " one") })
	require.Equal(t, []string{"register one", "deregister one", "register one"}, of)
}

func TestNew_ChecksConfig(t *testing.T) {
	_, err := pluginregistry.New(pluginregistry.Config{Dir: "relative", RescanPeriod: -1})
	for _, want := range []string{`Config.Dir: "relative" must be an absolute path`, "Config.Handlers: required", "Config.RescanPeriod: -1ns"} {
		require.ErrorContains(t, err, want)
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	r, err := pluginregistry.New(pluginregistry.Config{Dir: filepath.Join(file, "x"), Handlers: map[string]pluginregistry.Handler{"CSIPlugin": &recorder{}}})
	require.NoError(t, err)
	require.ErrorContains(t, r.Run(t.Context()), file)
}
