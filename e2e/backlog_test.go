//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
	criclient "github.com/sublet-dev/agent/runtime/cri"
)

// BenchmarkStartsBesideDeadContainers has pods started one after the other while a
// backlog of dead containers is removed (CG-1), and as many afterwards.
// SUBLET_DEAD says how many dead ones there are [200]. Run it with -benchtime 1x.
func BenchmarkStartsBesideDeadContainers(b *testing.B) {
	dead := 200
	if n, err := strconv.Atoi(os.Getenv("SUBLET_DEAD")); err == nil {
		dead = n
	}
	containerdtest.EachBench(b, func(b *testing.B, n *containerdtest.Node) {
		for b.Loop() {
			startsBeside(b, n, dead)
			n.Purge(b)
		}
	})
}

func startsBeside(t testing.TB, n *containerdtest.Node, dead int) {
	b := &backlog{starts: starts{waits: map[string]chan struct{}{}}, node: n}
	b.pileUp(t, dead)
	pods, stop := b.agent(t, containergc.Policy{}, runtime.ExponentialBackOff{Base: time.Hour, Max: time.Hour}, b.crashing())
	defer stop()
	var beside, alone []time.Duration
	for i := 0; b.left(dead) > 0 || len(beside) == 0; i++ {
		beside = append(beside, b.start(t, pods, fmt.Sprint("beside", i)))
	}
	b.mu.Lock()
	took := b.last.Sub(b.first)
	b.mu.Unlock()
	for i := range len(beside) {
		alone = append(alone, b.start(t, pods, fmt.Sprint("alone", i)))
	}
	slices.Sort(beside)
	slices.Sort(alone)
	half := func(d []time.Duration) time.Duration { return d[len(d)/2].Round(time.Millisecond) }
	t.Logf("%s: %d dead containers removed in %v; %d starts beside that took %v, at most %v; as many alone %v, at most %v", n.Name,
		dead, took.Round(time.Millisecond), len(beside), half(beside), beside[len(beside)-1].Round(time.Millisecond),
		half(alone), alone[len(alone)-1].Round(time.Millisecond))
}

// crashers is how many pods pile up dead containers.
const crashers = 4

type backlog struct {
	starts

	node *containerdtest.Node

	first, last time.Time // removals; guarded by mu
	removed     int       // guarded by mu
}

// starts are pods whose start is measured.
type starts struct {
	mu    sync.Mutex
	waits map[string]chan struct{}
}

// SetStatus implements status.Sink.
func (s *starts) SetStatus(_ context.Context, p *corev1.Pod, st corev1.PodStatus) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ran := s.waits[p.Name]; ran != nil && st.Phase == corev1.PodRunning {
		close(ran)
		delete(s.waits, p.Name)
	}
	return nil
}

func (b *backlog) crashing() (pods []*corev1.Pod) {
	for i := range crashers {
		pods = append(pods, b.pod(fmt.Sprint("crash", i), "exit 3"))
	}
	return pods
}

func (b *backlog) pod(name, script string) *corev1.Pod {
	p := new(corev1.Pod)
	p.Name, p.Namespace, p.UID = name, "default", types.UID("uid-"+name)
	p.Spec.HostNetwork = true
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: b.node.Busybox, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", script},
	}}
	p.Spec.TerminationGracePeriodSeconds = new(int64)
	return p
}

// agent starts one on the node.
func (b *backlog) agent(t testing.TB, keep containergc.Policy, wait runtime.BackOff, pods []*corev1.Pod) (source *podsource.Memory, stop func()) {
	client, err := criclient.New(b.node.Dial(t), criclient.Config{})
	require.NoError(t, err)
	source = podsource.NewMemory(pods...)
	a, err := agent.New(
		agent.WithRuntime(client), agent.WithNodeName(nodeName), agent.WithStatusSink(b), agent.WithSource("memory", source), agent.WithConfig(podsync.Config{BackOff: wait}),
		agent.WithNode(node.Config{CgroupRoot: b.node.CgroupParent, PodLogsDir: filepath.Join(b.node.Shared, "logs")}),
		agent.WithRootDir(filepath.Join(b.node.Shared, "agent")), agent.WithConfig(containergc.Config{Policy: keep}),
		agent.WithHooks(agent.Hooks{ContainerGC: containergc.Hooks{Removed: b.onRemoved}}),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	return source, sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
}

// pileUp has pods crash until there are so many dead containers.
func (b *backlog) pileUp(t testing.TB, dead int) {
	_, stop := b.agent(t, containergc.Policy{MaxPerPodContainer: containergc.KeepAll},
		runtime.ExponentialBackOff{Base: time.Millisecond, Max: time.Millisecond}, b.crashing())
	defer stop()
	client, err := criclient.New(b.node.Dial(t), criclient.Config{Observer: true})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // of containers that are not removed
		pods, err := client.Pods(context.Background())
		require.NoError(t, err)
		n := 0
		for i := range pods {
			n += len(pods[i].Containers)
		}
		return n >= dead+crashers
	}, testTimeout, 100*time.Millisecond)
}

func (b *backlog) onRemoved(_ containergc.Removal, _ time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last = time.Now(); b.removed == 0 {
		b.first = b.last
	}
	if err == nil {
		b.removed++
	}
}

// left is how many of so many dead containers are still to go.
func (b *backlog) left(dead int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return dead - b.removed
}

// start starts a pod, waits until it runs, and returns how long that took.
func (b *backlog) start(t testing.TB, pods *podsource.Memory, name string) time.Duration {
	ran := make(chan struct{})
	b.mu.Lock()
	b.waits[name] = ran
	b.mu.Unlock()
	began := time.Now()
	pods.Put(b.pod(name, "sleep 1000000 & wait"))
	late := time.NewTimer(testTimeout)
	defer late.Stop()
	select {
	case <-ran:
	case <-late.C:
		require.Fail(t, "it never ran", name)
	}
	return time.Since(began)
}
