package runtimetest

import (
	"context"
	"fmt"
	"net"
	"path"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/embedded/stream"
)

// run runs one case on the runtime of the mutant: on simulated processes in a bubble,
// where time costs nothing.
func (m mutant) run(t *testing.T, tc testCase) (c *CaseT) {
	if m.runs != simulation {
		return m.suite(t).execute(t.Context(), tc)
	}
	synctest.Test(t, func(t *testing.T) { c = m.rebuilt().suite(t).execute(t.Context(), tc) })
	return c
}

// rebuilt returns another copy of the mutant: the channels of a bubble must be made in it.
func (m mutant) rebuilt() mutant {
	all := mutants()
	if i := slices.IndexFunc(all, func(o mutant) bool { return o.defect == m.defect }); i >= 0 {
		all[i].isSlow = m.isSlow
		return all[i]
	}
	return m
}

// suite starts the runtime of the mutant behind a proxy that makes its defect.
func (m mutant) suite(t *testing.T) *suite {
	s := newSuite(SecondImage("example.com/second:1"), PrivateImage(privateRef, privateUser, privatePassword), CDISpecDir(t.TempDir()))
	s.nodeHas, s.isMountShared = func(nodeFeature) bool { return true }, func(string) bool { return true }
	s.hugePages = func() []int64 { return []int64{2 << 20} }
	s.restart = func(context.Context) error { return nil }
	if m.defect != "" {
		s.reserve = 0 // what is waited for does not happen, and each wait asks the runtime a hundred times a second
	}
	s.logs = t.TempDir()
	second := embedded.Image{Ref: s.second, StopSignal: "SIGUSR1"}
	rt, err := embedded.New(embedded.Config{Executor: m.newExecutor(), Images: []embedded.Image{second}, Handlers: []string{"special"}, HostPorts: m.runs != simulation})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	s.dial = serveInMemory(t, rt)

	direct, err := rt.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close() })
	var to grpc.ClientConnInterface = newEquipment(direct)
	if m.isSlow {
		to = slowConn{to}
	}
	s.cc = m.proxied(t, to)
	require.NoError(t, s.getImages(t.Context()))
	return s
}

// proxied returns a connection through the proxy that makes the defect.
func (m mutant) proxied(t testing.TB, to grpc.ClientConnInterface) *grpc.ClientConn {
	var rules []Rule
	if m.response != nil {
		rules = append(rules, Rule{Fault: Corrupt, Mutate: m.response})
	}
	p, err := NewProxy(mutantConn{to, m}, 1, rules...)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	cc, err := p.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc.ClientConn
}

// find returns a case by its name.
func find(name string) (testCase, bool) {
	all := cases()
	i := slices.IndexFunc(all, func(tc testCase) bool { return tc.name == name })
	if i < 0 {
		return testCase{}, false
	}
	return all[i], true
}

func (m mutant) newExecutor() (executor embedded.Executor) {
	executor = simulated.New(simulated.Config{})
	if m.runs != simulation {
		executor = hostprocess.New(hostprocess.Config{Unprivileged: m.runs == hostProcesses})
	}
	if m.executor != nil {
		executor = m.executor(executor)
	}
	return executor
}

// serveInMemory serves exec, attach and port-forward until the test ends, and returns
// how to connect: the network would stop the time of a bubble.
func serveInMemory(t testing.TB, rt *embedded.Runtime) func(context.Context, string) (net.Conn, error) {
	lis := &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server, err := stream.New(rt, lis)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return lis.dial
}

// memoryListener is a listener at the address memory:1.
type memoryListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *memoryListener) Addr() net.Addr { return memoryAddr{} }

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "memory:1" }

func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) dial(ctx context.Context, addr string) (net.Conn, error) {
	if addr != l.Addr().String() {
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// mutantConn changes requests on their way to a runtime, and whole calls.
type mutantConn struct {
	grpc.ClientConnInterface
	m mutant
}

// rpcCall is one call that a mutant may answer in its own way.
type rpcCall struct {
	ctx       context.Context
	rpc       string // RunPodSandbox
	method    string // with its service
	req, resp any
	conn      grpc.ClientConnInterface
}

// next makes the call.
func (c rpcCall) next() error { return c.conn.Invoke(c.ctx, c.method, c.req, c.resp) }

func (r mutantConn) Invoke(ctx context.Context, method string, req, resp any, _ ...grpc.CallOption) error {
	if r.m.request != nil {
		r.m.request(req)
	}
	c := rpcCall{ctx, path.Base(method), method, req, resp, r.ClientConnInterface}
	if r.m.call != nil {
		return r.m.call(c)
	}
	return c.next()
}

func (r mutantConn) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := r.ClientConnInterface.NewStream(ctx, d, method, opts...)
	return mutantStream{s, r.m}, err
}

// slowConn makes calls that make, start or remove something take as long as with a runtime of
// containers.
type slowConn struct{ grpc.ClientConnInterface }

func (s slowConn) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	const duration = 300 * time.Millisecond
	switch path.Base(method) {
	case "RunPodSandbox", "CreateContainer", "StartContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox":
		if err := sleep.For(ctx, duration); err != nil {
			return status.FromContextError(err).Err()
		}
	}
	return s.ClientConnInterface.Invoke(ctx, method, req, resp, opts...)
}

// mutantStream changes the request of a stream.
type mutantStream struct {
	grpc.ClientStream
	m mutant
}

func (s mutantStream) SendMsg(req any) error {
	if s.m.request != nil {
		s.m.request(req)
	}
	return s.ClientStream.SendMsg(req)
}
