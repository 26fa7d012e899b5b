package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/internal/systest"
	"github.com/sublet-dev/agent/runtime/cri"
)

// countedConn is a connection that counts calls.
type countedConn struct {
	grpc.ClientConnInterface

	mu    sync.Mutex // guards calls
	calls map[string]int
}

// Invoke implements grpc.ClientConnInterface.
func (c *countedConn) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	c.mu.Lock()
	c.calls[method[strings.LastIndex(method, "/")+1:]]++
	c.mu.Unlock()
	return c.ClientConnInterface.Invoke(ctx, method, req, resp, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c *countedConn) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c.mu.Lock()
	c.calls[method[strings.LastIndex(method, "/")+1:]]++
	c.mu.Unlock()
	return c.ClientConnInterface.NewStream(ctx, d, method, opts...)
}

// BenchmarkRestart measures an agent that starts while its pods run: the time from the start until all are adopted and their statuses
// are sent, and the calls of the runtime until the agent is idle.
func BenchmarkRestart(b *testing.B) {
	for _, pods := range sizes(100, 1000) {
		b.Run(fmt.Sprint("pods=", pods), func(b *testing.B) {
			n := startNode(b, true)
			defer func() { n.end() }()
			n.await(pods, isRunning, func() { n.memory.Put(agenttest.Pods(pods)...) })
			n.settle()
			var took []time.Duration
			var calls map[string]int
			var used time.Duration
			for b.Loop() {
				n.stopAgent()
				cc, err := cri.Dial("unix://" + n.socket)
				require.NoError(b, err)
				counted := &countedConn{ClientConnInterface: cc, calls: map[string]int{}}
				client, err := cri.New(counted, cri.Config{})
				require.NoError(b, err)
				before := systest.CPUTime(b)
				reported := n.await(pods, isRunning, func() { n.startAgent(agent.WithRuntime(client)) })
				took = append(took, reported[len(reported)-1])
				used = systest.CPUTime(b) - before
				n.settle()
				counted.mu.Lock()
				calls = counted.calls
				counted.mu.Unlock()
				require.Zero(b, calls["RunPodSandbox"]+calls["CreateContainer"], "the pods were running: %v", calls)
				n.mu.Lock()
				for _, st := range n.statuses {
					require.Zero(b, st.ContainerStatuses[0].RestartCount)
				}
				n.mu.Unlock()
			}
			total := 0
			for _, c := range calls {
				total += c
			}
			b.Logf("calls: %v", calls)
			b.ReportMetric(median(sorted(took)).Seconds(), "reported-s")
			b.ReportMetric(float64(total)/float64(pods), "calls/pod")
			b.ReportMetric(ms(used)/float64(pods), "cpu-ms/pod")
			b.ReportMetric(0, "ns/op")
		})
	}
}
