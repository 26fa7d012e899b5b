package dra_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	apibeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/sublet-dev/agent/dra"
)

// fakeCluster keeps the drivers of the node.
type fakeCluster struct {
	mu    sync.Mutex
	names []string
	calls int
}

// SetDrivers implements dra.Node.
func (c *fakeCluster) SetDrivers(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = names
	c.calls++
}

func (c *fakeCluster) requireDrivers(t *testing.T, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.calls > 0 && slices.Equal(c.names, want)
	}, time.Minute, time.Millisecond)
}

// A driver is one of the node while it can be reached. One that is killed leaves its sockets, and
// is there again when it is started again.
func TestManager_SetsDriversOfTheNode(t *testing.T) {
	cluster := new(fakeCluster)
	m := newManager(t, stateFile(t), fakeClaims{}, func(cfg *dra.Config) { cfg.Node = cluster })
	p := serve(t, new(fakeDriver))
	register(t, m, p)
	cluster.requireDrivers(t, "gpu.vendor.example")

	killed := p
	killed.Name, killed.Socket, killed.Endpoint = "nic.vendor.example", p.Socket+"2", p.Endpoint+"2"
	start := func() (kill func()) {
		t.Helper()
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", killed.Endpoint)
		require.NoError(t, err)
		s := grpc.NewServer()
		api.RegisterDRAPluginServer(s, new(fakeDriver))
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(l) })
		return func() {
			s.Stop()
			serving.Wait()
		}
	}
	kill := start()
	register(t, m, killed)
	cluster.requireDrivers(t, "gpu.vendor.example", "nic.vendor.example")
	kill()
	cluster.requireDrivers(t, "gpu.vendor.example")
	kill = start()
	cluster.requireDrivers(t, "gpu.vendor.example", "nic.vendor.example")

	// During an upgrade there are two of one name.
	next := killed
	next.Socket += "-next"
	register(t, m, next)
	m.Deregister(t.Context(), killed)
	cluster.requireDrivers(t, "gpu.vendor.example", "nic.vendor.example")
	m.Deregister(t.Context(), next)
	cluster.requireDrivers(t, "gpu.vendor.example")
	kill()
	m.Deregister(t.Context(), p)
	cluster.requireDrivers(t)
}

// Drivers that are older than Kubernetes 1.34 have version v1beta1 of the API alone.
func TestManager_CallsV1beta1Drivers(t *testing.T) {
	d := new(fakeDriver)
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", "gpu.vendor.example")})
	p := serveAs(t, func(s *grpc.Server) { apibeta.RegisterDRAPluginServer(s, apibeta.V1ServerWrapper{DRAPluginServer: d}) })
	p.Versions = []string{"v1beta1.DRAPlugin"}
	register(t, m, p)
	require.Equal(t, []string{"vendor.example/gpu=a", "vendor.example/link=0"}, inject(t, m, pod("p", "a"), false))
	require.NoError(t, m.Release(t.Context(), "p"))
	require.Equal(t, []string{"prepare a", "unprepare a"}, d.taken())
}

// The new driver of an upgrade that is killed leaves its sockets: the old one, which still runs, is called.
func TestManager_CallsTheDriverThatRuns(t *testing.T) {
	d := new(fakeDriver)
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", "gpu.vendor.example"), "b": claim("b", "gpu.vendor.example")})
	p := serve(t, d)
	register(t, m, p)
	inject(t, m, pod("one", "a"), false)
	killed := p
	killed.Socket, killed.Endpoint = p.Socket+"-next", p.Endpoint+"-next"
	register(t, m, killed)
	two := pod("two", "b")
	require.Eventually(t, func() bool {
		_, err := m.Inject(t.Context(), two, &two.Spec.Containers[0], false)
		return err == nil
	}, time.Minute, time.Millisecond)
	require.Equal(t, []string{"prepare a", "prepare b"}, d.taken())
}

// What a driver answers does not flood the statuses of pods and logs.
func TestManager_BoundsErrorsOfDrivers(t *testing.T) {
	d, huge := new(fakeDriver), "no power: "+strings.Repeat("x", 1<<20)
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", "gpu.vendor.example")})
	register(t, m, serve(t, d))
	for _, set := range []func(){
		func() { d.answers(huge, nil) },
		func() { d.answers("", errors.New(huge)) },
		func() { d.answers("", nil); d.cdi = huge },
	} {
		set()
		err := injectErr(t, m, pod("p", "a"))
		require.ErrorContains(t, err, "no power: xxx")
		require.Less(t, len(err.Error()), 2048)
	}
}

// An agent that stops does not deregister its drivers, and watches them no longer.
func TestManager_WatchesDriversWhileRegistered(t *testing.T) {
	watching := func() bool {
		stacks := make([]byte, 1<<20)
		return bytes.Contains(stacks[:goruntime.Stack(stacks, true)], []byte("(*driver).watch("))
	}
	cluster := new(fakeCluster)
	m := newManager(t, stateFile(t), fakeClaims{}, func(cfg *dra.Config) { cfg.Node = cluster })
	p := serve(t, new(fakeDriver))
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, m.Register(ctx, p))
	cluster.requireDrivers(t, "gpu.vendor.example")
	require.True(t, watching())
	cancel()
	require.Eventually(t, func() bool { return !watching() }, time.Minute, time.Millisecond)
	cluster.requireDrivers(t, "gpu.vendor.example") // nothing is known of their end
	m.Deregister(t.Context(), p)
	cluster.requireDrivers(t)
}
