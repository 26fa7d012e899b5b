package agent_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

type noting func(*corev1.Event)

func (f noting) Record(e *corev1.Event) { f(e) }

// hanging is a runtime whose inspection of one pod hangs.
type hanging struct {
	*cri.Client
	uid types.UID
}

func (h hanging) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	if uid != h.uid {
		return h.Client.Pod(ctx, uid)
	}
	<-ctx.Done()
	return runtime.Pod{}, context.Cause(ctx)
}

func (h hanging) InspectListedPod(ctx context.Context, listed runtime.Pod) (runtime.Pod, error) {
	return h.Pod(ctx, listed.UID)
}

// PL-8: a pod whose inspection hangs is reported as an inspection error. It neither makes
// the agent unhealthy nor keeps other pods from running.
func TestAgent_ReportsHungInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
		require.NoError(t, err)
		cc, err := rt.Dial()
		require.NoError(t, err)
		client, err := cri.New(cc, cri.Config{})
		require.NoError(t, err)
		var statuses agenttest.Statuses
		a, err := agent.New(
			agent.WithNodeName("node"), agent.WithRootDir(t.TempDir()), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithStatusSink(&statuses),
			agent.WithRuntime(hanging{client, "uid-hung"}),
			agent.WithSource("api", podsource.NewMemory(agenttest.SizedPod("hung", "1Mi", "0s=1Mi"), agenttest.SizedPod("well", "1Mi", "0s=1Mi"))),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		errs := a.InspectionErrors()
		healthy := a.Healthy()
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, cc.Close())
		require.NoError(t, rt.Close())
		require.NoError(t, healthy)
		require.Equal(t, corev1.PodRunning, statuses.Of("well").Phase)
		require.Len(t, errs, 1)
		require.ErrorContains(t, errs[0], "uid-hung")
	})
}

// lateSource is an empty source that syncs when the channel is closed.
type lateSource chan struct{}

func (l lateSource) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	select {
	case <-l:
		deliver(podsource.Set{})
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// CG-2: exited containers that no source contains stay until all sources have synced,
// because the status of their pod may still be needed.
func TestContainerGC_WaitsForAllSources(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		pod := agenttest.SizedPod("orphan", "1Mi", "0s=1Mi")
		dir := t.TempDir()
		applied := client.Apply(t.Context(), pod, []runtime.Action{{Type: runtime.CreateSandbox}, {Type: runtime.StartContainer, Container: "main"}}, runtime.RunOptions{Dir: dir, LogDir: dir})
		require.Empty(t, applied.Failures)
		observed, err := client.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.NoError(t, client.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: time.Second}))

		source := make(lateSource)
		start(agent.WithSource("memory", podsource.NewMemory(agenttest.SizedPod("web", "1Mi", "0s=1Mi"))), agent.WithSource("late", source))
		time.Sleep(10 * time.Minute)
		left, err := client.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.Len(t, left.Containers, 1)
		require.Len(t, left.Sandboxes, 1)

		close(source)
		time.Sleep(90 * time.Second)
		left, err = client.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.Empty(t, left.Containers)
		require.Empty(t, left.Sandboxes)
	})
}

// Events about a container say which one, as those of a kubelet.
func TestAgent_EventsOfContainersHaveAFieldPath(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		paths := map[string]string{}
		pods := podsource.NewMemory(agenttest.Pod("crashes", "run-for=1s", "exit-code=1"), agenttest.Pod("runs"))
		a, err := agent.New(agent.WithSimulatedRuntime(), agent.WithRootDir(root), agent.WithSource("memory", pods),
			agent.WithRecorder(noting(func(e *corev1.Event) {
				mu.Lock()
				defer mu.Unlock()
				paths[e.Reason] = e.InvolvedObject.FieldPath
			})))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(5 * time.Minute)
		pods.Delete("default", "runs")
		time.Sleep(time.Minute)
		cancel()
		require.NoError(t, <-done)
		for _, reason := range []string{"Pulling", "Pulled", "Created", "Started", "BackOff", "Killing"} {
			require.Equal(t, "spec.containers{main}", paths[reason], reason)
		}
	})
}
