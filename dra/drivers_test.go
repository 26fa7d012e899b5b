package dra_test

import (
	"bytes"
	"context"
	"net"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

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
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		return func() {
			s.Stop()
			require.NoError(t, <-done)
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
