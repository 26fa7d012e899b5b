package csi

import (
	"encoding/base64"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/pluginregistry"
)

func TestRegister_RejectsDrivers(t *testing.T) {
	e := newEnv(t, nil)
	for name, tc := range map[string]struct {
		change func(p *pluginregistry.Plugin)
		want   string
	}{
		"with a name that leads elsewhere": {func(p *pluginregistry.Plugin) { p.Name = ".." }, `invalid name ".."`},
		"with a long name":                 {func(p *pluginregistry.Plugin) { p.Name = strings.Repeat("x", 64) }, "invalid name"},
		"with a directory as its name":     {func(p *pluginregistry.Plugin) { p.Name = "volumeDevices" }, "invalid name"},
		"of an old version":                {func(p *pluginregistry.Plugin) { p.Versions = []string{"0.3.0"} }, "none of 1.x"},
		"with the name of another":         {func(p *pluginregistry.Plugin) { p.Name = "other.example" }, `calls itself "csitest.example", but was registered as "other.example"`},
		"that do not listen":               {func(p *pluginregistry.Plugin) { p.Endpoint = "/nowhere.sock" }, "GetPluginInfo: "},
	} {
		t.Run(name, func(t *testing.T) {
			p := e.plugin()
			tc.change(&p)
			require.ErrorContains(t, e.Register(t.Context(), p), tc.want)
		})
	}
	e.register()
}

// Of two drivers of one name the newer one is used, as in a rolling update, and the other one when that is gone again.
func TestRegister_DriversOfOneName(t *testing.T) {
	e := newEnv(t, nil)
	older, err := e.client(csitest.Name)
	require.NoError(t, err)
	update := e.plugin()
	update.Socket = "/update.sock"
	for range 2 { // the second time in place of itself
		require.NoError(t, e.Register(t.Context(), update))
	}
	newer, err := e.client(csitest.Name)
	require.NoError(t, err)
	require.NotSame(t, older, newer)
	require.Same(t, older, newer.previous)

	e.Deregister(t.Context(), update)
	left, err := e.client(csitest.Name)
	require.NoError(t, err)
	require.Same(t, older, left)
	v := e.volumeOf(newPod("1"), "v")
	_, err = e.Mount(t.Context(), v)
	require.NoError(t, err, "it is connected")
	e.unmounted(v.Pod)

	require.NoError(t, e.Register(t.Context(), update))
	e.Deregister(t.Context(), e.plugin())
	e.Deregister(t.Context(), e.plugin())
	_, err = e.client(csitest.Name)
	require.NoError(t, err, "the newer one has replaced the one that has left")
	e.Deregister(t.Context(), update)
	_, err = e.client(csitest.Name)
	require.ErrorContains(t, err, "is not registered")
}

// blockingNode keeps the drivers that it gets. The next call with entered set blocks until release is closed.
type blockingNode struct {
	mu               sync.Mutex
	drivers          []string
	entered, release chan struct{} // nil: no call blocks
}

func (n *blockingNode) SetDrivers(list []storagev1.CSINodeDriver) {
	n.mu.Lock()
	entered, release := n.entered, n.release
	n.entered = nil
	n.mu.Unlock()
	if entered != nil {
		close(entered)
		<-release
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drivers = nil
	for _, d := range list {
		n.drivers = append(n.drivers, d.Name)
	}
}

// Drivers that register at the same time are all in the last list that the cluster gets.
func TestRegister_ConcurrentDrivers(t *testing.T) {
	node := new(blockingNode)
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Node = node })
	register := func(name string) (done chan error) {
		d := &csitest.Driver{Name: name, Dir: filepath.Join(e.dir, name)}
		p := e.plugin()
		p.Name, p.Socket, p.Endpoint = name, "/"+name, filepath.Join(e.dir, name+".sock")
		stop, err := d.Serve(p.Endpoint, "")
		require.NoError(t, err)
		t.Cleanup(func() { stop(false) })
		done = make(chan error, 1)
		go func() { done <- e.Register(t.Context(), p) }()
		return done
	}
	node.entered, node.release = make(chan struct{}), make(chan struct{})
	entered := node.entered
	<-e.changed // of the first driver
	second := register("second.example")
	<-entered
	<-e.changed
	third := register("third.example")
	<-e.changed // the third is about to report
	for range 10_000 {
		runtime.Gosched() // it must not overtake the second
	}
	close(node.release)
	require.NoError(t, <-second)
	require.NoError(t, <-third)
	assert.Equal(t, []string{csitest.Name, "second.example", "third.example"}, node.drivers)
}

// A panic of the Node is logged, and the driver is registered.
func TestRegister_SurvivesPanics(t *testing.T) {
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Node = rudeNode{} })
	e.Deregister(t.Context(), e.plugin())
	e.register()
}

type rudeNode struct{}

func (rudeNode) SetDrivers([]storagev1.CSINodeDriver) { panic("no such luck") }

func TestNew_ChecksConfig(t *testing.T) {
	_, err := New(Config{Root: "relative", CallTimeout: -1})
	for _, want := range []string{`csi: Config.Root: "relative" must be an absolute path`, "csi: Config.NodeName: required", "csi: Config.CallTimeout: -1ns must be at least 0"} {
		require.ErrorContains(t, err, want)
	}
	m, err := New(Config{Root: "/r", NodeName: "n"})
	require.NoError(t, err)
	assert.Equal(t, []time.Duration{2 * time.Minute, 10 * time.Second, time.Minute}, []time.Duration{m.cfg.CallTimeout, m.cfg.SlowCallAge, m.cfg.HealthPeriod})
	assert.Equal(t, []string{"csi"}, m.Sources())
}

func TestWithoutSecrets(t *testing.T) {
	assert.Equal(t, "a *** b ***", withoutSecrets("a x1 b y2", map[string]string{"k": "x1", "l": "y2", "none": ""}))
	for range 20 { // in whatever order the map has them
		assert.Equal(t, "wrong: ***, ***", withoutSecrets("wrong: hunter2-and-more, hunter2", map[string]string{"k": "hunter2", "l": "hunter2-and-more"}))
	}
	assert.Equal(t, `wrong: "***"`, withoutSecrets(`wrong: "hunter2"`, map[string]string{"k": "hunter2\n"}), "trimmed")
	assert.Equal(t, `wrong: "***"`, withoutSecrets(`wrong: "two\nlines\n"`, map[string]string{"k": "two\nlines\n"}), "quoted")
	assert.Len(t, withoutSecrets(strings.Repeat("x", 2000), nil), maxMessageLength+len("…"))
}

func TestExpirationOf(t *testing.T) {
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"exp": 1700000000}`))
	at, err := expirationOf("h." + claims + ".s")
	require.NoError(t, err)
	assert.Equal(t, int64(1700000000), at.Unix())
	for _, bad := range []string{"", "s3cret", "a.b", "a.!.c", "a." + base64.RawURLEncoding.EncodeToString([]byte("x")) + ".c"} {
		_, err := expirationOf(bad)
		require.EqualError(t, err, "is not a JWT")
	}
}
