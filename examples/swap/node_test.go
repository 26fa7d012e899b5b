package swap_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

// until blocks until ctx is done, as the Run of a component that has nothing to do.
func until(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// countingEviction counts the pods that another Eviction admits.
type countingEviction struct {
	agent.Eviction
	admitted *counter
}

func (e countingEviction) Admit(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult {
	result := e.Eviction.Admit(pod, others)
	if result.Admitted {
		e.admitted.add()
	}
	return result
}

// idleNode reports a node that is short of nothing.
type idleNode struct{}

func (idleNode) Usage(context.Context, time.Time) (runtime.NodeUsage, error) {
	return runtime.NodeUsage{}, nil
}

func Example_evictionDecorated() {
	var admitted counter
	runPod(agent.WithConfig(eviction.Config{Usage: idleNode{}}), agent.WithEviction(func(c *agent.Components) (agent.Eviction, error) {
		e, err := agent.NewEviction(c)
		return countingEviction{e, &admitted}, err
	}))
	fmt.Println("admissions counted:", admitted.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// admissions counted: true
}

// quota is an Eviction that rejects pods of other namespaces than one, and evicts none.
type quota struct{ namespace string }

func (q quota) Admit(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	if pod.Namespace != q.namespace {
		return podspec.Rejected("OtherTenant", "this node is reserved for namespace "+q.namespace)
	}
	return podspec.Admitted()
}

func (quota) UnderPressure() bool                { return false }
func (quota) Conditions() []corev1.NodeCondition { return nil }
func (quota) Run(ctx context.Context) error      { return until(ctx) }

func Example_evictionOwn() {
	runPod(agent.WithEviction(func(*agent.Components) (agent.Eviction, error) { return quota{"default"}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}

// countingImageGC counts the leases of another ImageGC.
type countingImageGC struct {
	agent.ImageGC
	leases *counter
}

func (g countingImageGC) Lease(ctx context.Context, uid types.UID, refs []string) error {
	g.leases.add()
	return g.ImageGC.Lease(ctx, uid, refs)
}

func Example_imageGCDecorated() {
	var leases counter
	runPod(agent.WithConfig(imagegc.Config{}), agent.WithImageGC(func(c *agent.Components) (agent.ImageGC, error) {
		g, err := agent.NewImageGC(c)
		return countingImageGC{g, &leases}, err
	}))
	fmt.Println("leases counted:", leases.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// leases counted: true
}

// keepImages removes no image, and prints those that a pod needs.
type keepImages struct{ needed chan []string }

func (g keepImages) Lease(_ context.Context, _ types.UID, refs []string) error {
	select {
	case g.needed <- refs:
	default:
	}
	return nil
}

func (keepImages) Release(types.UID)             {}
func (keepImages) Restore(...*corev1.Pod)        {}
func (keepImages) Reclaim(context.Context) error { return nil }
func (keepImages) Run(ctx context.Context) error { return until(ctx) }
func (keepImages) Explain(context.Context, bool) ([]imagegc.Decision, error) {
	return nil, nil
}

func Example_imageGCOwn() {
	needed := make(chan []string, 1)
	runPod(agent.WithImageGC(func(*agent.Components) (agent.ImageGC, error) { return keepImages{needed}, nil }))
	fmt.Println("needed:", <-needed)
	// Output:
	// the pod runs
	// the pod is gone
	// needed: [app:1]
}

// countingContainerGC counts the requests that another ContainerGC gets.
type countingContainerGC struct {
	agent.ContainerGC
	requests *counter
}

func (g countingContainerGC) RequestCollection() {
	g.requests.add()
	g.ContainerGC.RequestCollection()
}

func Example_containerGCDecorated() {
	var requests counter
	runPod(agent.WithContainerGC(func(c *agent.Components) (agent.ContainerGC, error) {
		g, err := agent.NewContainerGC(c)
		return countingContainerGC{g, &requests}, err
	}))
	fmt.Println("requests counted:", requests.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// requests counted: true
}

// keepContainers leaves all exited containers to be looked into.
type keepContainers struct{}

func (keepContainers) RequestCollection()               {}
func (keepContainers) RequestCollectionFor(runtime.Pod) {}
func (keepContainers) Reclaim(context.Context) error    { return nil }
func (keepContainers) Run(ctx context.Context) error    { return until(ctx) }
func (keepContainers) Explain(context.Context) ([]containergc.Removal, error) {
	return nil, nil
}

func Example_containerGCOwn() {
	runPod(agent.WithContainerGC(func(*agent.Components) (agent.ContainerGC, error) { return keepContainers{}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}

// countingRotator counts how often another LogRotator is started: once.
type countingRotator struct {
	agent.LogRotator
	starts *counter
}

func (r countingRotator) Run(ctx context.Context) error {
	r.starts.add()
	return r.LogRotator.Run(ctx)
}

func Example_logRotatorDecorated() {
	var starts counter
	runPod(agent.WithLogRotator(func(c *agent.Components) (agent.LogRotator, error) {
		r, err := agent.NewLogRotator(c)
		return countingRotator{r, &starts}, err
	}))
	fmt.Println("starts counted:", starts.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// starts counted: true
}

// noRotation lets logs grow.
type noRotation struct{}

func (noRotation) Run(ctx context.Context) error { return until(ctx) }

func Example_logRotatorOwn() {
	runPod(agent.WithLogRotator(func(*agent.Components) (agent.LogRotator, error) { return noRotation{}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}

// countingStats counts the summaries of another Stats.
type countingStats struct {
	agent.Stats
	summaries *counter
}

func (s countingStats) Summary(ctx context.Context, nodeName string, pods []*corev1.Pod) (stats.Summary, error) {
	s.summaries.add()
	return s.Stats.Summary(ctx, nodeName, pods)
}

func Example_statsDecorated() {
	var summaries counter
	runPod(agent.WithStats(func(c *agent.Components) (agent.Stats, error) {
		s, err := agent.NewStats(c)
		return countingStats{s, &summaries}, err
	}))
	fmt.Println("summaries counted:", summaries.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// summaries counted: true
}

// noStats measures nothing.
type noStats struct{ idleNode }

func (noStats) NodeUsage(context.Context) (runtime.NodeUsage, error) {
	return runtime.NodeUsage{}, nil
}

func (noStats) RefreshDiskUsage(context.Context, time.Time) {}
func (noStats) Run(ctx context.Context) error               { return until(ctx) }
func (noStats) Summary(_ context.Context, nodeName string, _ []*corev1.Pod) (stats.Summary, error) {
	return stats.Summary{Node: stats.NodeStats{NodeName: nodeName}}, nil
}

func (n noStats) CPUAndMemoryStats(ctx context.Context, nodeName string, pods []*corev1.Pod) (stats.Summary, error) {
	return n.Summary(ctx, nodeName, pods)
}

func Example_statsOwn() {
	runPod(agent.WithStats(func(*agent.Components) (agent.Stats, error) { return noStats{}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}
