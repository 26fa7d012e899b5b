package agenttest

import (
	"context"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime/cri"
)

// process is one process of the agent.
type process struct {
	interceptor *interceptor
	conn        *grpc.ClientConn
	agent       *agent.Agent
	cancel      context.CancelFunc
	done        chan error
}

// Start starts an agent on the state that the previous one left. It has the sources
// memory and file, and a sink and a recorder that write to the trace.
func (h *Harness) Start() {
	h.t.Helper()
	p := &process{done: make(chan error, 1)}
	var err error
	p.conn, err = cri.Dial("passthrough:///runtime", grpc.WithContextDialer(h.dial), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
		MinConnectTimeout: 5 * time.Second,
	}))
	require.NoError(h.t, err)
	p.interceptor = newInterceptor(h, p.conn)
	recorder := warnings{h, p.interceptor}
	client, err := cri.New(p.interceptor, cri.Config{
		Recorder: events.New(recorder), InitialParallelStarts: 64, PullTimeout: 3 * time.Minute, DialContext: h.inside.DialContext,
	})
	require.NoError(h.t, err)
	node := h.config.Node
	node.DisableCgroups, node.PodLogsDir = true, filepath.Join(h.Dir, "logs")
	opts := []agent.Option{
		agent.WithNodeName("node"), agent.WithRootDir(h.Dir), agent.WithRuntime(client), agent.WithNode(node),
		agent.WithConfig(podworkers.Config{Jitter: 1e-9}),
		agent.WithRecorder(recorder), agent.WithStatusSink(&sink{h: h, interceptor: p.interceptor, sent: map[types.UID]bool{}}),
		agent.WithSource("memory", h.memory()),
		agent.WithSource("file", podsource.File(h.Manifests.Dir, podsource.FileNotifier(h.Manifests))),
	}
	if !h.config.CollectExited {
		opts = append(opts, agent.WithConfig(containergc.Config{Policy: containergc.Policy{MinAge: 1000 * time.Hour}}))
	}
	p.agent, err = agent.New(append(opts, h.config.Options...)...)
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.done <- p.agent.Run(ctx) }()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current = p
}

// AddOptions adds options of the agents that are started from now on.
func (h *Harness) AddOptions(opts ...agent.Option) {
	h.config.Options = append(h.config.Options, opts...)
}

func (h *Harness) memory() podsource.Source {
	if h.config.NotStatic {
		return podsource.NotStatic(h.Memory)
	}
	return h.Memory
}

// Agent returns the running agent, or nil.
func (h *Harness) Agent() *agent.Agent {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == nil {
		return nil
	}
	return h.current.agent
}

// Killed reports whether no agent runs, or the one that runs is being killed. A sink must
// ignore what it is sent then.
func (h *Harness) Killed() bool {
	h.mu.Lock()
	p := h.current
	h.mu.Unlock()
	return p == nil || p.interceptor.isDead()
}

// Stop stops the agent as SIGTERM does.
func (h *Harness) Stop() {
	h.t.Helper()
	if p := h.take(); p != nil {
		p.cancel()
		if err := <-p.done; h.config.Faults == nil || h.noMoreFaults() { // a drain can fail because of faults
			assert.NoError(h.t, err, "Run of an agent that was stopped")
		}
		p.interceptor.die()
		require.NoError(h.t, p.conn.Close())
	}
}

// Kill ends the agent as SIGKILL does: from now on it neither calls the runtime nor sends
// a status. It can still write files, as a process could just before its end.
func (h *Harness) Kill() {
	h.t.Helper()
	if p := h.take(); p != nil {
		p.interceptor.die()
		p.cancel()
		<-p.done // its calls fail, so it can end with an error
		require.NoError(h.t, p.conn.Close())
	}
}

func (h *Harness) take() *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.current
	h.current = nil
	return p
}
