package bench

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// The environment of the runtime's process.
const (
	benchSocket   = "SUBLET_BENCH_SOCKET"
	benchNoEvents = "SUBLET_BENCH_NO_EVENTS"
)

// benchSmoke is in the environment of TestBenchmarks: fewer pods, and seconds instead of minutes.
const benchSmoke = "SUBLET_BENCH_SMOKE"

// sizes returns numbers of pods, or a small one if the benchmark only has to work.
func sizes(pods ...int) []int {
	return unlessSmoke(pods, []int{50})
}

// unlessSmoke returns the first value, or the other one if the benchmark only has to work.
func unlessSmoke[T any](full, smoke T) T {
	if os.Getenv(benchSmoke) != "" {
		return smoke
	}
	return full
}

// TestMain serves the runtime instead of running tests if the environment asks for it. The
// process ends when its standard input is closed.
func TestMain(m *testing.M) {
	if socket := os.Getenv(benchSocket); socket != "" {
		if err := serveRuntime(socket); err != nil {
			panic(err)
		}
		return
	}
	agenttest.Main(m)
}

func serveRuntime(socket string) error {
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), EventBufferSize: 1 << 20})
	if err != nil {
		return err
	}
	var opts []grpc.ServerOption
	if os.Getenv(benchNoEvents) != "" {
		opts = append(opts, grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if info.FullMethod == v1.RuntimeService_GetContainerEvents_FullMethodName {
				return status.Error(codes.Unimplemented, "no events")
			}
			return h(srv, s)
		}))
	}
	server := grpc.NewServer(append(opts, grpc.MaxSendMsgSize(64<<20))...)
	rt.Register(server)
	lis, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() { _ = server.Serve(lis) }()
	_, _ = os.Stdin.Read(make([]byte, 1))
	server.Stop()
	return rt.Close()
}

// testNode is an agent with a runtime in another process. It is the sink of the agent.
type testNode struct {
	b         *testing.B
	memory    *podsource.Memory
	socket    string // of the runtime
	agent     *agent.Agent
	stopAgent func() // leaves the runtime and its pods
	end       func() // ends both

	mu       sync.Mutex // guards the rest
	statuses map[string]*corev1.PodStatus
	event    chan struct{}
	at       map[string]time.Time // when a pod's condition was met
	want     func(name string, st *corev1.PodStatus) bool
}

// startNode starts a runtime and an agent. The runtime has an event stream if events is
// true.
func startNode(b *testing.B, events bool, opts ...agent.Option) *testNode {
	dir := b.TempDir()
	socket := filepath.Join(dir, "r.sock")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchSocket+"="+socket)
	if !events {
		cmd.Env = append(cmd.Env, benchNoEvents+"=1")
	}
	stdin, err := cmd.StdinPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	require.Eventually(b, func() bool { _, err := os.Stat(socket); return err == nil }, time.Minute, 10*time.Millisecond)

	n := &testNode{b: b, socket: socket, memory: podsource.NewMemory(), statuses: map[string]*corev1.PodStatus{}, at: map[string]time.Time{}, event: make(chan struct{}, 1)}
	n.startAgent(append(opts, agent.WithRuntimeEndpoint("unix://"+socket))...)
	require.Eventually(b, func() bool { return n.agent.Healthy() == nil }, time.Minute, time.Millisecond)
	n.end = func() {
		n.stopAgent()
		require.NoError(b, stdin.Close())
		_ = cmd.Wait()
	}
	return n
}

// startAgent starts an agent on the runtime and the files of the previous one.
func (n *testNode) startAgent(opts ...agent.Option) {
	a, err := agent.New(append(opts,
		agent.WithNodeName("bench"), agent.WithRootDir(filepath.Join(filepath.Dir(n.socket), "root")),
		agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSource("memory", n.memory), agent.WithStatusSink(n),
	)...)
	require.NoError(n.b, err)
	n.agent = a
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	n.stopAgent = sync.OnceFunc(func() {
		cancel()
		require.NoError(n.b, <-done)
	})
}

// watchHealth polls the health of the agent until the returned function is called, which
// fails the benchmark if the agent was unhealthy.
func (n *testNode) watchHealth() func() {
	stop, bad := make(chan struct{}), make(chan error, 1)
	go func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				bad <- nil
				return
			case <-ticker.C:
			}
			if err := n.agent.Healthy(); err != nil {
				bad <- err
				return
			}
		}
	}()
	return func() {
		close(stop)
		require.NoError(n.b, <-bad)
	}
}

// SetStatus implements status.Sink.
func (n *testNode) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	n.note(pod.Name, &st)
	return nil
}

// DeleteStatus implements status.Deleter.
func (n *testNode) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	n.note(pod.Name, nil)
	return nil
}

func (n *testNode) note(name string, st *corev1.PodStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.statuses[name] = st
	if n.want != nil && n.at[name].IsZero() && n.want(name, st) {
		n.at[name] = time.Now()
		notify.Send(n.event)
	}
}

// await calls do and waits until a number of pods have a status that want accepts. It
// returns the times that they took, in ascending order.
func (n *testNode) await(pods int, want func(name string, st *corev1.PodStatus) bool, do func()) []time.Duration {
	n.mu.Lock()
	clear(n.at)
	n.want = want
	n.mu.Unlock()
	began := time.Now()
	do()
	timeout := time.After(5 * time.Minute)
	for {
		n.mu.Lock()
		if len(n.at) >= pods {
			took := make([]time.Duration, 0, pods)
			for _, at := range n.at {
				took = append(took, at.Sub(began))
			}
			n.want = nil
			n.mu.Unlock()
			slices.Sort(took)
			return took
		}
		have := len(n.at)
		n.mu.Unlock()
		select {
		case <-n.event:
		case <-timeout:
			n.b.Fatalf("%d of %d pods reached the desired status", have, pods)
		}
	}
}

func isRunning(_ string, st *corev1.PodStatus) bool {
	return st != nil && st.Phase == corev1.PodRunning && len(st.ContainerStatuses) > 0 && st.ContainerStatuses[0].Ready
}

func isDeleted(_ string, st *corev1.PodStatus) bool { return st == nil }

func sorted(d []time.Duration) []time.Duration {
	slices.Sort(d)
	return d
}

func median(d []time.Duration) time.Duration { return d[len(d)/2] }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// heap returns the size of live objects and stacks.
func heap() uint64 {
	m := collected()
	return m.HeapAlloc + m.StackInuse
}

// collected returns what is in use after a garbage collection.
func collected() (m goruntime.MemStats) {
	goruntime.GC()
	goruntime.GC()
	goruntime.ReadMemStats(&m)
	return m
}
