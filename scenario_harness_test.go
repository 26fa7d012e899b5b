package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// harness is a node in a bubble: a simulated runtime behind a proxy that injects faults,
// sources, and one agent process at a time.
type harness struct {
	t       *testing.T
	sc      *scenario
	trace   *trace
	objects runtimeObjects
	dir     string // root directory of the agent
	files   *files
	opts    []agent.Option   // of each agent, in addition to those of start
	node    agent.NodeConfig // of each agent; start sets the directories
	memory  *podsource.Memory

	inside  *embedded.Runtime
	direct  *embedded.Conn // without proxy and interceptor
	proxy   *runtimetest.Proxy
	rules   []runtimetest.Rule
	made    time.Time  // the time of the proxy
	chance  *faultPlan // nil: only the faults of the scenario
	calmed  bool       // all faults have ended
	collect bool       // exited containers, as by default
	stops   stops

	mu          sync.Mutex        // guards the rest
	lis         *bufconn.Listener // nil: the runtime is down
	halt        context.CancelFunc
	served      chan struct{}
	current     *agentProcess
	breakpoints []*breakpoint
	sinkErr     error
	listing     time.Duration                  // duration of a list of all sandboxes
	last        map[types.UID]corev1.PodStatus // last status of each pod
}

// agentProcess is one process of the agent.
type agentProcess struct {
	tap   *criInterceptor
	cc    *grpc.ClientConn
	agent *agent.Agent
	end   context.CancelFunc
	done  chan error
}

// breakpoint runs a command at a call.
type breakpoint struct {
	rpc, when string
	n         int // calls until then
	do        []string
}

func newHarness(t *testing.T, sc *scenario) *harness { return newHarnessWith(t, sc, nil) }

func newHarnessWith(t *testing.T, sc *scenario, x *faultPlan) *harness {
	w := &harness{t: t, sc: sc, chance: x, dir: filepath.Join(t.TempDir(), "root"), memory: podsource.NewMemory(), last: map[types.UID]corev1.PodStatus{}}
	w.objects.by, w.stops.first = map[string]runtimeObject{}, map[string]time.Duration{}
	w.files = &files{dir: t.TempDir()}
	grain := time.Millisecond
	if g, ok := sc.option("grain"); ok {
		d, err := time.ParseDuration(g[0])
		require.NoError(t, err)
		grain = d
	}
	w.trace = newTrace(grain)
	w.trace.hide = strings.NewReplacer(w.files.dir, "/manifests", w.dir, "/root")
	w.boot()
	return w
}

// source is w.memory, whose pods are not static if the scenario has that option.
func (w *harness) source() podsource.Source {
	if _, ok := w.sc.option("not-static"); ok {
		return podsource.NotStatic(w.memory)
	}
	return w.memory
}

// boot starts an empty runtime.
func (w *harness) boot() {
	rt, err := embedded.New(embedded.Config{Images: w.images()})
	require.NoError(w.t, err)
	w.inside = rt
	w.direct, err = rt.Dial()
	require.NoError(w.t, err)
	w.proxy, err = runtimetest.NewProxy(w.direct, w.chance.proxySeed())
	require.NoError(w.t, err)
	w.made = time.Now()
	w.setRules()
	w.up()
}

// setRules sets the faults of the scenario and of the fault plan.
func (w *harness) setRules() {
	var rules []runtimetest.Rule
	if !w.calmed {
		rules = w.chance.since(w.made.Sub(w.trace.began))
	}
	require.NoError(w.t, w.proxy.SetRules(append(rules, w.rules...)...))
}

// shutDown ends what boot started, and kills all containers.
func (w *harness) shutDown() {
	w.down()
	require.NoError(w.t, w.direct.Close())
	require.NoError(w.t, w.inside.Close())
}

// up starts to serve the runtime.
func (w *harness) up() {
	ctx, cancel := context.WithCancel(context.Background())
	lis, served := bufconn.Listen(256<<10), make(chan struct{})
	go func() {
		defer close(served)
		_ = w.proxy.Serve(ctx, lis)
	}()
	w.mu.Lock()
	w.lis, w.halt, w.served = lis, cancel, served
	w.mu.Unlock()
}

// down stops to serve the runtime. Containers keep running.
func (w *harness) down() {
	w.mu.Lock()
	halt, served := w.halt, w.served
	w.lis, w.halt = nil, nil
	w.mu.Unlock()
	if halt != nil {
		halt()
		<-served
	}
}

// lastStatus returns the last status of the pod with a label, or the zero value.
func (w *harness) lastStatus(label string) corev1.PodStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, st := range w.last {
		if w.trace.label(uid, "") == label {
			return st
		}
	}
	return corev1.PodStatus{}
}

func (w *harness) isDown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lis == nil
}

func (w *harness) dial(ctx context.Context, _ string) (net.Conn, error) {
	w.mu.Lock()
	lis := w.lis
	w.mu.Unlock()
	if lis == nil {
		return nil, errors.New("connection refused")
	}
	return lis.DialContext(ctx)
}

// start starts an agent on the state that the previous one left.
func (w *harness) start() {
	l := &agentProcess{done: make(chan error, 1)}
	var err error
	l.cc, err = cri.Dial("passthrough:///runtime", grpc.WithContextDialer(w.dial), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
		MinConnectTimeout: 5 * time.Second,
	}))
	require.NoError(w.t, err)
	l.tap = newInterceptor(w, l.cc)
	client, err := cri.New(l.tap, cri.Config{Recorder: events.New(fakeRecorder{w, l.tap}), InitialParallelStarts: 64, PullTimeout: 3 * time.Minute})
	require.NoError(w.t, err)
	opts := []agent.Option{
		agent.WithNodeName("node"), agent.WithRootDir(w.dir), agent.WithRuntime(client),
		agent.WithTiming(agent.Timing{Jitter: 1e-9}),
		agent.WithRecorder(fakeRecorder{w, l.tap}), agent.WithStatusSink(&recordingSink{w: w, tap: l.tap, sent: map[types.UID]bool{}}),
		agent.WithSource("memory", w.source()),
		agent.WithSource("file", podsource.File(w.files.dir, podsource.FileNotifier(w.files))),
	}
	if _, ok := w.sc.option("collect"); !ok && !w.collect { // its removals would be in all traces
		opts = append(opts, agent.WithContainerGC(containergc.Policy{MinAge: 1000 * time.Hour}))
	}
	node := w.node
	node.DisableCgroups, node.PodLogsDir = true, filepath.Join(w.dir, "logs")
	if n, ok := w.sc.option("max-pods"); ok {
		node.MaxPods, err = strconv.Atoi(n[0])
		require.NoError(w.t, err)
	}
	if d, ok := w.sc.option("drain"); ok {
		within, err := time.ParseDuration(d[0])
		require.NoError(w.t, err)
		opts = append(opts, agent.WithShutdownPolicy(agent.ShutdownPolicy{Drain: true, DrainTimeout: within}))
	}
	l.agent, err = agent.New(append(append(opts, agent.WithNode(node)), w.opts...)...)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	l.end = cancel
	go func() { l.done <- l.agent.Run(ctx) }()
	w.mu.Lock()
	w.current = l
	w.mu.Unlock()
}

// stop stops the agent as SIGTERM does.
func (w *harness) stop() {
	if l := w.take(); l != nil {
		l.end()
		if err := <-l.done; w.chance == nil || w.calmed { // a drain can fail because of faults
			assert.NoError(w.t, err, "Run of an agent that was stopped")
		}
		l.tap.die()
		require.NoError(w.t, l.cc.Close())
	}
}

// kill ends the agent as SIGKILL does: from now on it neither calls the runtime nor
// sends a status. It can still write files, as a process could just before its end.
func (w *harness) kill() {
	if l := w.take(); l != nil {
		l.tap.die()
		l.end()
		<-l.done // its calls fail, so it can end with an error
		require.NoError(w.t, l.cc.Close())
	}
}

func (w *harness) take() *agentProcess {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.current
	w.current = nil
	return l
}

// hitBreakpoint runs the commands of the breakpoints at this call.
func (w *harness) hitBreakpoint(rpc, when, pod string) {
	w.mu.Lock()
	var due []*breakpoint
	for _, t := range w.breakpoints {
		if t.rpc == rpc && t.when == when && t.n > 0 {
			if t.n--; t.n == 0 {
				due = append(due, t)
			}
		}
	}
	w.mu.Unlock()
	for _, t := range due {
		time.Sleep(time.Millisecond) // after everything else at this time
		w.trace.add("", lineScript, "", fmt.Sprintf("%s: %s", strings.TrimSuffix(when+" "+rpc+" of "+pod, " of "), strings.Join(t.do, " ")))
		switch t.do[0] {
		case "restart-runtime":
			w.down()
			time.AfterFunc(w.duration(t.do[1]), w.up)
		case "kill-agent":
			w.mu.Lock()
			l := w.current
			w.mu.Unlock()
			l.tap.die() // the rest blocks
			go func() {
				w.kill()
				time.Sleep(w.duration(t.do[1]))
				w.start()
			}()
		default:
			w.t.Errorf("unknown command of a breakpoint: %q", t.do[0])
		}
	}
}

func (w *harness) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	require.NoError(w.t, err)
	return d
}

// delayList delays a list of all sandboxes. Inspections of one pod are not delayed.
func (w *harness) delayList(ctx context.Context, req any) {
	q, ok := req.(*v1.ListPodSandboxRequest)
	w.mu.Lock()
	d := w.listing
	w.mu.Unlock()
	if !ok || d == 0 || q.GetFilter().GetId() != "" || len(q.GetFilter().GetLabelSelector()) > 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// checkStart asserts that no container starts while another one of its name runs in the
// pod.
func (w *harness) checkStart(rpc string, req any) {
	q, ok := req.(*v1.StartContainerRequest)
	if !ok {
		return
	}
	x := w.object(q.GetContainerId())
	name, _, _ := strings.Cut(x.name, "#")
	for _, c := range w.running() {
		if c.GetLabels()["io.kubernetes.pod.uid"] == string(x.uid) && c.GetMetadata().GetName() == name && c.GetId() != q.GetContainerId() && !w.chance.lies() {
			w.t.Errorf("%s %s of %s while another %s runs", rpc, x.name, x.pod, name)
		}
	}
}

func (w *harness) running() []*v1.Container {
	list, err := w.inside.ListContainers(context.Background(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{
		State: &v1.ContainerStateValue{State: v1.ContainerState_CONTAINER_RUNNING},
	}})
	require.NoError(w.t, err)
	return list.GetContainers()
}

// left lists the sandboxes and containers in the runtime at the end of a scenario.
func (w *harness) left() string {
	var all []string
	boxes, err := w.inside.ListPodSandbox(context.Background(), &v1.ListPodSandboxRequest{})
	require.NoError(w.t, err)
	for _, s := range boxes.GetItems() {
		m := s.GetMetadata()
		all = append(all, fmt.Sprintf("    %s  sandbox#%d %s\n", w.trace.label(types.UID(m.GetUid()), m.GetName()), m.GetAttempt(),
			strings.ToLower(strings.TrimPrefix(s.GetState().String(), "SANDBOX_"))))
	}
	list, err := w.inside.ListContainers(context.Background(), &v1.ListContainersRequest{})
	require.NoError(w.t, err)
	for _, c := range list.GetContainers() {
		x := w.object(c.GetId())
		all = append(all, fmt.Sprintf("    %s  %s %s\n", x.pod, x.name, strings.ToLower(strings.TrimPrefix(c.GetState().String(), "CONTAINER_"))))
	}
	slices.Sort(all)
	if all == nil {
		return "end, with nothing left in the runtime\n"
	}
	return "end, with these in the runtime\n" + strings.Join(all, "")
}

// decode returns the pods in a file of the scenario.
func (w *harness) decode(name string) []*corev1.Pod {
	text, ok := w.sc.files[name]
	require.True(w.t, ok, "no file %s in the scenario", name)
	pods, objects, err := podspec.Decode([]byte(text), podspec.DecodeOptions{})
	require.NoError(w.t, err, name)
	require.Empty(w.t, objects, "%s: only pods are supported", name)
	return pods
}
