package agenttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// Config of a Harness. The zero value is an empty node without faults.
type Config struct {
	// Images of the runtime, with their properties. Others are pulled at once.
	Images []embedded.Image
	// Executor decorates the executor of the runtime, to observe containers. nil does not.
	Executor func(embedded.Executor) embedded.Executor
	// Grain is the precision of times in the trace. Default: 1ms.
	Grain time.Duration
	// NotStatic wraps the memory source in podsource.NotStatic.
	NotStatic bool
	// CollectExited has agents remove exited containers after the default time. Otherwise
	// they are kept, so that their removal is not in the trace.
	CollectExited bool
	// NoWarnings leaves warnings out of the trace.
	NoWarnings bool
	// Node is the configuration of each agent. Its PodLogsDir and DisableCgroups are set.
	Node node.Config
	// Options of each agent, in addition to those of Start.
	Options []agent.Option
	// Faults between the agents and the runtime, in addition to those of SetFaults. nil has
	// none.
	Faults *FaultPlan
}

// Harness is a node in a bubble: a simulated runtime behind a proxy that injects faults,
// sources, and one agent process at a time. New makes it. Every process must be stopped or
// killed, and ShutDown called, before the bubble ends. Methods fail the test if they cannot
// do what they are for.
type Harness struct {
	// Trace records the actions of the agents.
	Trace *Trace
	// Memory is the source named memory.
	Memory *podsource.Memory
	// Manifests is the directory of the source named file.
	Manifests *Manifests
	// Dir is the root directory of the agents.
	Dir string

	t       *testing.T
	config  Config
	objects runtimeObjects
	stops   firstStops

	// The runtime, replaced by Boot.
	inside   *embedded.Runtime
	direct   *embedded.Conn // without proxy and interceptor
	proxy    *runtimetest.Proxy
	bootedAt time.Time
	rules    []runtimetest.Rule

	mu          sync.Mutex        // guards the rest
	listener    *bufconn.Listener // nil: the runtime is down
	stopServing func()
	current     *process
	breakpoints []*Breakpoint
	sinkErr     error
	listDelay   time.Duration
	faultsEnded bool
	last        map[types.UID]corev1.PodStatus
}

// New makes a node with a running runtime and no agent. It is called in a bubble.
func New(t *testing.T, config Config) *Harness {
	t.Helper()
	h := &Harness{
		t: t, config: config,
		Memory: podsource.NewMemory(), Manifests: &Manifests{Dir: t.TempDir()}, Dir: filepath.Join(t.TempDir(), "root"),
		last: map[types.UID]corev1.PodStatus{},
	}
	h.Trace = newTrace(config.Grain, strings.NewReplacer(h.Manifests.Dir, "/manifests", h.Dir, "/root"))
	h.Boot()
	return h
}

// Boot starts an empty runtime. It may be called again after ShutDown.
func (h *Harness) Boot() {
	h.t.Helper()
	var executor embedded.Executor = simulated.New(simulated.Config{})
	if h.config.Executor != nil {
		executor = h.config.Executor(executor)
	}
	rt, err := embedded.New(embedded.Config{Executor: executor, Images: h.config.Images})
	require.NoError(h.t, err)
	h.inside = rt
	h.direct, err = rt.Dial()
	require.NoError(h.t, err)
	h.proxy, err = runtimetest.NewProxy(h.direct, h.config.Faults.proxySeed())
	require.NoError(h.t, err)
	h.bootedAt = time.Now()
	h.setRules()
	h.Up()
}

// ShutDown ends the runtime and kills all containers.
func (h *Harness) ShutDown() {
	h.t.Helper()
	h.Down()
	require.NoError(h.t, h.direct.Close())
	require.NoError(h.t, h.inside.Close())
}

// Up starts to serve the runtime.
func (h *Harness) Up() {
	ctx, cancel := context.WithCancel(context.Background())
	listener, served := bufconn.Listen(256<<10), make(chan struct{})
	go func() {
		defer close(served)
		_ = h.proxy.Serve(ctx, listener)
	}()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listener = listener
	h.stopServing = func() {
		cancel()
		<-served
	}
}

// Down stops to serve the runtime. Containers keep running.
func (h *Harness) Down() {
	h.mu.Lock()
	stop := h.stopServing
	h.listener, h.stopServing = nil, nil
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (h *Harness) isDown() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listener == nil
}

func (h *Harness) dial(ctx context.Context, _ string) (net.Conn, error) {
	h.mu.Lock()
	listener := h.listener
	h.mu.Unlock()
	if listener == nil {
		return nil, errors.New("connection refused")
	}
	return listener.DialContext(ctx)
}

// SetFaults replaces the faults of calls of the runtime, except those of Config.Faults.
func (h *Harness) SetFaults(rules ...runtimetest.Rule) {
	h.t.Helper()
	h.rules = rules
	h.setRules()
}

// Faults returns the rules of SetFaults.
func (h *Harness) Faults() []runtimetest.Rule { return slices.Clone(h.rules) }

func (h *Harness) setRules() {
	h.t.Helper()
	var rules []runtimetest.Rule
	if !h.noMoreFaults() {
		rules = h.config.Faults.since(h.bootedAt.Sub(h.Trace.start))
	}
	require.NoError(h.t, h.proxy.SetRules(append(rules, h.rules...)...))
}

func (h *Harness) noMoreFaults() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.faultsEnded
}

// EndFaults ends all faults, breakpoints and delays, and starts to serve the runtime if it
// is down.
func (h *Harness) EndFaults() {
	h.t.Helper()
	h.mu.Lock()
	h.breakpoints, h.sinkErr, h.listDelay = nil, nil, 0
	h.faultsEnded = true
	h.mu.Unlock()
	h.config.Faults.count(h.proxy.FaultCounts())
	h.SetFaults()
	if h.isDown() {
		h.Up()
	}
}

// SetSinkError sets the error that the status sink returns. nil: it accepts statuses.
func (h *Harness) SetSinkError(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sinkErr = err
}

// SetListDelay sets the time that each list of all sandboxes takes.
func (h *Harness) SetListDelay(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listDelay = d
}

// LastStatus returns the last status of the pod with a label, or the zero value.
func (h *Harness) LastStatus(label string) corev1.PodStatus {
	for uid, st := range h.Statuses() {
		if h.Trace.Label(uid, "") == label {
			return st
		}
	}
	return corev1.PodStatus{}
}

// Statuses returns the last status of each pod that is not deleted.
func (h *Harness) Statuses() map[types.UID]corev1.PodStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.last)
}

// Runtime returns a connection to the runtime without faults and without the trace.
func (h *Harness) Runtime() *embedded.Conn { return h.direct }

// Running returns the running containers.
func (h *Harness) Running() []*v1.Container {
	h.t.Helper()
	list, err := h.inside.ListContainers(context.Background(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{
		State: &v1.ContainerStateValue{State: v1.ContainerState_CONTAINER_RUNNING},
	}})
	require.NoError(h.t, err)
	return list.GetContainers()
}

// ReadySandboxes returns the sandboxes that are ready.
func (h *Harness) ReadySandboxes() []*v1.PodSandbox {
	h.t.Helper()
	list, err := h.inside.ListPodSandbox(context.Background(), &v1.ListPodSandboxRequest{Filter: &v1.PodSandboxFilter{
		State: &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY},
	}})
	require.NoError(h.t, err)
	return list.GetItems()
}

// Empty is what Left returns if nothing is in the runtime.
const Empty = "end, with nothing left in the runtime\n"

// Left lists the sandboxes and containers in the runtime, as at the end of a trace.
func (h *Harness) Left() string {
	h.t.Helper()
	var all []string
	sandboxes, err := h.inside.ListPodSandbox(context.Background(), &v1.ListPodSandboxRequest{})
	require.NoError(h.t, err)
	for _, s := range sandboxes.GetItems() {
		m := s.GetMetadata()
		all = append(all, fmt.Sprintf("    %s  sandbox#%d %s\n", h.Trace.Label(types.UID(m.GetUid()), m.GetName()), m.GetAttempt(),
			strings.ToLower(strings.TrimPrefix(s.GetState().String(), "SANDBOX_"))))
	}
	containers, err := h.inside.ListContainers(context.Background(), &v1.ListContainersRequest{})
	require.NoError(h.t, err)
	for _, c := range containers.GetContainers() {
		o := h.object(c.GetId())
		all = append(all, fmt.Sprintf("    %s  %s %s\n", o.pod, o.name, strings.ToLower(strings.TrimPrefix(c.GetState().String(), "CONTAINER_"))))
	}
	slices.Sort(all)
	if all == nil {
		return Empty
	}
	return "end, with these in the runtime\n" + strings.Join(all, "")
}

// StopContainer stops a container of the pod with a label without the agent, or its
// sandbox if container is empty. It reports whether the pod had a running container of
// that name.
func (h *Harness) StopContainer(label, container string) bool {
	h.t.Helper()
	ctx := context.Background()
	for _, c := range h.Running() {
		if h.object(c.GetId()).pod != label || container != "" && c.GetMetadata().GetName() != container {
			continue
		}
		var err error
		if container == "" {
			_, err = h.inside.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: c.GetPodSandboxId()})
		} else {
			_, err = h.inside.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: c.GetId()})
		}
		require.NoError(h.t, err)
		return true
	}
	return false
}
