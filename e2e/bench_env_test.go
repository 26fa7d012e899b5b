//go:build linux

package e2e

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	criclient "github.com/sublet-dev/agent/runtime/cri"
)

// testTimeout bounds each wait of a measurement.
var testTimeout = containerdtest.Timeout(2 * time.Minute)

// benchEnv is a node for measurements: a runtime, and whole agents on it, one at a
// time. What they ask of the runtime goes through a tap.
type benchEnv struct {
	cc    grpc.ClientConnInterface
	root  string // directory of the agents and of the files beside them
	image string
	node  *containerdtest.Node // nil: an embedded runtime
	host  node.Config
	tap   tap
	cri   criclient.Config // of the agents' clients
	opts  []agent.Option   // of the agents, in addition
}

// newRig returns a rig without an agent.
func newRig(cc grpc.ClientConnInterface, root, image, cgroups string) *benchEnv {
	return &benchEnv{
		cc: cc, root: root, image: image, tap: tap{cc: cc, calls: map[string]int{}},
		host: node.Config{CgroupRoot: cgroups, DisableCgroups: cgroups == "", PodLogsDir: filepath.Join(root, "logs")},
	}
}

// pod is a pod of one container that does nothing, and exits at once on SIGTERM.
func (r *benchEnv) pod(name string) *corev1.Pod {
	p := new(corev1.Pod)
	p.Name, p.Namespace = name, "default"
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: r.image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"},
	}}
	return p
}

// agentProcess is one running agent of a rig.
type agentProcess struct {
	*podsource.Memory
	agent *agent.Agent
	stop  func() // ends the agent; a second call does nothing

	mu      sync.Mutex
	running map[string]time.Time // when pods were reported as running, by name
	deleted map[string]time.Time // when nothing of them was left
	changed chan struct{}        // one slot: a status or a deletion was reported
}

// start starts an agent that runs until stop, or the end of the test.
func (r *benchEnv) start(t testing.TB) *agentProcess {
	t.Helper()
	l := &agentProcess{
		Memory: podsource.NewMemory(), running: map[string]time.Time{}, deleted: map[string]time.Time{}, changed: make(chan struct{}, 1),
	}
	client, err := criclient.New(&r.tap, r.cri)
	require.NoError(t, err)
	l.agent, err = agent.New(append([]agent.Option{
		agent.WithRuntime(client), agent.WithNodeName(nodeName), agent.WithNode(r.host),
		agent.WithRootDir(filepath.Join(r.root, "agent")), agent.WithSource("memory", l.Memory), agent.WithStatusSink(l),
	}, r.opts...)...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.agent.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run the agent: %v", err)
		}
	})
	t.Cleanup(l.stop)
	return l
}

// SetStatus implements status.Sink.
func (l *agentProcess) SetStatus(_ context.Context, p *corev1.Pod, st corev1.PodStatus) error {
	if st.Phase == corev1.PodRunning && allRun(st) {
		l.note(l.running, p.Name)
	}
	return nil
}

// allRun reports whether every regular container runs: a pod counts as running
// when the first one does.
func allRun(st corev1.PodStatus) bool {
	return !slices.ContainsFunc(st.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running == nil })
}

// DeleteStatus implements status.Deleter.
func (l *agentProcess) DeleteStatus(_ context.Context, p *corev1.Pod) error {
	l.note(l.deleted, p.Name)
	return nil
}

func (l *agentProcess) note(where map[string]time.Time, pod string) {
	now := time.Now()
	l.mu.Lock()
	if _, ok := where[pod]; !ok {
		where[pod] = now
	}
	l.mu.Unlock()
	notify.Send(l.changed)
}

// up adds pods and waits until all are reported as running. It returns how long each
// took, in order.
func (l *agentProcess) up(t testing.TB, pods ...*corev1.Pod) []time.Duration {
	t.Helper()
	began := time.Now()
	l.Put(pods...)
	return l.await(t, l.running, began, len(pods))
}

// down removes all pods and waits until nothing of them is left. It returns how
// long each took, in order.
func (l *agentProcess) down(t testing.TB, n int) []time.Duration {
	t.Helper()
	began := time.Now()
	l.Set()
	return l.await(t, l.deleted, began, n)
}

func (l *agentProcess) await(t testing.TB, where map[string]time.Time, began time.Time, n int) []time.Duration {
	t.Helper()
	late := time.NewTimer(testTimeout)
	defer late.Stop()
	for {
		l.mu.Lock()
		at := slices.Collect(maps.Values(where))
		if len(at) == n {
			clear(where)
		}
		l.mu.Unlock()
		if len(at) == n {
			took := make([]time.Duration, n)
			for i := range at {
				took[i] = at[i].Sub(began)
			}
			slices.Sort(took)
			return took
		}
		select {
		case <-l.changed:
		case <-late.C:
			t.Fatalf("after %v only %d of %d pods are there: %v", testTimeout, len(at), n, l.agent.Healthy())
		}
	}
}

// tap is a connection that counts calls, keeps what a pod is made with, and has
// no event stream if configured so.
type tap struct {
	cc       grpc.ClientConnInterface
	eventful bool

	mu        sync.Mutex // guards the rest
	calls     map[string]int
	sandbox   *cri.RunPodSandboxRequest // the last one
	container *cri.CreateContainerRequest
	recording bool
	requests  []proto.Message // that make sandboxes and containers, while it records
}

// record begins or ends to record the requests that make sandboxes and containers, and returns those recorded so far.
func (t *tap) record(on bool) []proto.Message {
	t.mu.Lock()
	defer t.mu.Unlock()
	requests := t.requests
	t.recording, t.requests = on, nil
	return requests
}

// Invoke implements grpc.ClientConnInterface.
func (t *tap) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	t.count(method, req)
	return t.cc.Invoke(ctx, method, req, resp, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (t *tap) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	t.count(method, nil)
	if !t.eventful && strings.HasSuffix(method, "/GetContainerEvents") {
		return nil, status.Error(codes.Unimplemented, "no events here")
	}
	return t.cc.NewStream(ctx, d, method, opts...)
}

// listing is how a list of everything is counted, as against one of a single pod.
const listing = "listing"

func (t *tap) count(method string, req any) {
	rpc := method[strings.LastIndex(method, "/")+1:]
	t.mu.Lock()
	defer t.mu.Unlock()
	switch q := req.(type) {
	case *cri.RunPodSandboxRequest:
		t.sandbox = q
		t.keep(q)
	case *cri.CreateContainerRequest:
		t.container = q
		t.keep(q)
	case *cri.ListPodSandboxRequest:
		if len(q.GetFilter().GetLabelSelector()) == 0 {
			rpc = listing
		}
	case *cri.ListContainersRequest:
		if len(q.GetFilter().GetLabelSelector()) == 0 {
			rpc = listing
		}
	case nil:
		if rpc == "StreamPodSandboxes" || rpc == "StreamContainers" {
			rpc = listing
		}
	}
	t.calls[rpc]++
}

// keep records a request. t.mu is held.
func (t *tap) keep(req proto.Message) {
	if t.recording {
		t.requests = append(t.requests, req)
	}
}

// take returns the calls since the last take.
func (t *tap) take() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.calls
	t.calls = map[string]int{}
	return calls
}

// total adds calls up, leaving those of some names out.
func total(calls map[string]int, but ...string) (n int) {
	for rpc, k := range calls {
		if !slices.Contains(but, rpc) {
			n += k
		}
	}
	return n
}
