package agent_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/status"
)

// sourceFunc is a source that is a function.
type sourceFunc func(ctx context.Context, deliver func(podsource.Set)) error

func (f sourceFunc) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	return f(ctx, deliver)
}

var errNoConnection = errors.New("connection refused")

// offline is a remote source whose server does not respond until back is closed.
func offline(back <-chan struct{}, then podsource.Source) podsource.Source {
	return sourceFunc(func(ctx context.Context, deliver func(podsource.Set)) error {
		deliver(podsource.Set{Incomplete: true, Errors: []podsource.SourceError{{
			Location: "http://manifests.example", Err: fmt.Errorf("%w: %w", podsource.ErrUnavailable, errNoConnection),
		}}})
		select {
		case <-ctx.Done():
			return nil
		case <-back:
			return then.Watch(ctx, deliver)
		}
	})
}

// sourcesNode is a simulated runtime and the root directory of its agents.
type sourcesNode struct {
	t      *testing.T
	root   string
	direct criv1.RuntimeServiceClient
	client *cri.Client
}

// onSourcesNode runs a test in a bubble on a node of its own.
func onSourcesNode(t *testing.T, test func(t *testing.T, n *sourcesNode)) {
	t.Helper()
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := &sourcesNode{t: t, root: root}
		defer n.boot()()
		test(t, n)
	})
}

// boot gives the node an empty runtime.
func (n *sourcesNode) boot() (shutDown func()) {
	inside, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	require.NoError(n.t, err)
	cc, err := inside.Dial()
	require.NoError(n.t, err)
	n.client, err = cri.New(cc, cri.Config{})
	require.NoError(n.t, err)
	n.direct = criv1.NewRuntimeServiceClient(cc)
	return func() {
		assert.NoError(n.t, cc.Close())
		assert.NoError(n.t, inside.Close())
	}
}

// start starts an agent with a source named http, and returns a function that stops it.
func (n *sourcesNode) start(src podsource.Source, opts ...agent.Option) (*agent.Agent, func()) {
	n.t.Helper()
	a, err := agent.New(append([]agent.Option{
		agent.WithNodeName("node"), agent.WithRootDir(n.root), agent.WithRuntime(n.client),
		agent.WithNode(agent.NodeConfig{DisableCgroups: true}), agent.WithSource("http", src),
	}, opts...)...)
	require.NoError(n.t, err)
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return a, func() {
		cancel()
		assert.NoError(n.t, <-done)
	}
}

// running returns the number of running containers.
func (n *sourcesNode) running() int {
	n.t.Helper()
	list, err := n.direct.ListContainers(n.t.Context(), &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		State: &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING},
	}})
	require.NoError(n.t, err)
	return len(list.GetContainers())
}

// condition returns the condition of that type, or nil.
func condition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	if i := slices.IndexFunc(list, func(c corev1.PodCondition) bool { return c.Type == t }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (n *sourcesNode) stopContainers() {
	n.t.Helper()
	list, err := n.direct.ListContainers(n.t.Context(), &criv1.ListContainersRequest{})
	require.NoError(n.t, err)
	for _, c := range list.GetContainers() {
		_, err := n.direct.StopContainer(n.t.Context(), &criv1.StopContainerRequest{ContainerId: c.GetId()})
		require.NoError(n.t, err)
	}
}

// SR-10: unknown state is not reported as good. Until a source has synced, the readiness
// of its pods is unknown and the rest is as observed. The agent is not healthy and names
// the source.
func TestAgent_PodsOfAnUnsyncedSourceAreReportedAsObserved(t *testing.T) {
	onSourcesNode(t, func(t *testing.T, n *sourcesNode) {
		memory := podsource.NewMemory(agenttest.Pod("web"))
		a, stop := n.start(memory)
		time.Sleep(time.Minute)
		require.NoError(t, a.Healthy())
		require.Equal(t, corev1.ConditionTrue, condition(a.Pods()[0].Status.Conditions, corev1.PodReady).Status)
		stop()

		var statuses agenttest.Statuses
		back := make(chan struct{})
		a, stop = n.start(offline(back, memory), agent.WithStatusSink(&statuses))
		defer stop()
		time.Sleep(time.Minute)
		st := a.Pods()[0].Status
		assert.Equal(t, corev1.PodRunning, st.Phase, "as observed")
		assert.False(t, st.ContainerStatuses[0].Ready)
		ready := condition(st.Conditions, corev1.PodReady)
		assert.Equal(t, corev1.ConditionUnknown, ready.Status)
		assert.Equal(t, status.ReasonNotSynced, ready.Reason)
		assert.Contains(t, ready.Message, "waiting for source http")
		var waits podsource.Unsynced
		require.ErrorAs(t, a.Healthy(), &waits)
		assert.Equal(t, "http", waits.Source)
		require.ErrorIs(t, a.Healthy(), errNoConnection)

		n.stopContainers()
		time.Sleep(time.Hour)
		synctest.Wait()
		st = a.Pods()[0].Status
		require.NotNil(t, st.ContainerStatuses[0].State.Terminated, "as observed")
		assert.False(t, st.ContainerStatuses[0].Ready)
		assert.Zero(t, statuses.Len(), "no status is sent before the source has synced")

		close(back)
		time.Sleep(time.Minute)
		require.NoError(t, a.Healthy())
		assert.Equal(t, 1, n.running())
		assert.Equal(t, corev1.ConditionTrue, condition(a.Pods()[0].Status.Conditions, corev1.PodReady).Status)
	})
}

// KU-2: a node that boots while its server is unavailable starts its cached pods and keeps
// them running. When the server is available again, deleted pods are terminated.
func TestCachedSource_StartsPodsWithoutItsServer(t *testing.T) {
	onSourcesNode(t, func(t *testing.T, n *sourcesNode) {
		dir := filepath.Join(n.root, "sources", "http")
		memory := podsource.NewMemory(agenttest.Pod("web"), agenttest.Pod("dropped"))
		_, stop := n.start(podsource.Cached(memory, dir))
		time.Sleep(time.Minute)
		require.Equal(t, 2, n.running())
		stop()

		shutDown := n.boot() // a power cut
		defer shutDown()
		back := make(chan struct{})
		a, stop := n.start(podsource.Cached(offline(back, memory), dir))
		defer stop()
		time.Sleep(5 * time.Second)
		require.Equal(t, 2, n.running())
		require.NoError(t, a.Healthy(), "the cache has synced")
		require.Equal(t, corev1.ConditionTrue, condition(a.Pods()[0].Status.Conditions, corev1.PodReady).Status)
		require.NotEmpty(t, a.SourceErrors(), "the unavailable server is reported")

		n.stopContainers()
		time.Sleep(time.Minute)
		require.Equal(t, 2, n.running(), "exited containers are restarted")

		memory.Delete("default", "dropped")
		close(back)
		time.Sleep(2 * time.Minute)
		require.Equal(t, 1, n.running())
		require.Empty(t, a.SourceErrors())
	})
}

// IG-6: image garbage collection runs while a source has not synced, which is reported as
// a source error.
func TestImageGC_RunsWhileASourceIsUnsynced(t *testing.T) {
	onSourcesNode(t, func(t *testing.T, n *sourcesNode) {
		var runs []time.Duration
		began := time.Now()
		hooks := agent.Hooks{ImageGC: imagegc.Hooks{Collected: func(imagegc.Result, error) { runs = append(runs, time.Since(began)) }}}
		unsynced := sourceFunc(func(ctx context.Context, _ func(podsource.Set)) error { <-ctx.Done(); return nil })
		a, stop := n.start(unsynced, agent.WithSource("file", podsource.NewMemory()), agent.WithImageGCPolicy(imagegc.Policy{}), agent.WithHooks(hooks))
		time.Sleep(time.Hour)
		errs := a.SourceErrors()
		stop()
		require.GreaterOrEqual(t, len(runs), 10)
		require.Greater(t, runs[0], time.Minute, "it waits for the source for a while")
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], podsource.ErrUnavailable)
	})
}

// IG-6: until all sources have synced, images that pods of the previous run used are kept,
// however full the disk is. Afterwards unused images are removed.
func TestImageGC_KeepsImagesOfPreviousRunUntilSourcesSynced(t *testing.T) {
	onSourcesNode(t, func(t *testing.T, n *sourcesNode) {
		collect := agent.WithImageGCPolicy(imagegc.Policy{MinAge: 1})
		_, stop := n.start(podsource.NewMemory(agenttest.Pod("web")), collect)
		time.Sleep(time.Minute)
		stop()
		list, err := n.direct.ListPodSandbox(t.Context(), &criv1.ListPodSandboxRequest{})
		require.NoError(t, err)
		for _, s := range list.GetItems() { // only the image is left
			_, err := n.direct.RemovePodSandbox(t.Context(), &criv1.RemovePodSandboxRequest{PodSandboxId: s.GetId()})
			require.NoError(t, err)
		}

		back := make(chan struct{})
		a, stop := n.start(offline(back, podsource.NewMemory()), collect)
		defer stop()
		time.Sleep(time.Hour)
		choices, err := a.ExplainImages(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, choices, 1)
		assert.Equal(t, imagegc.ReasonLeased, choices[0].Reason)

		close(back)
		time.Sleep(5 * time.Minute)
		choices, err = a.ExplainImages(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, choices, 1)
		assert.Equal(t, imagegc.ReasonUnused, choices[0].Reason)
	})
}
