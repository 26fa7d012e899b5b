package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
)

type noting func(*corev1.Event)

func (f noting) Record(e *corev1.Event) { f(e) }

// hanging never comes back from looking at one pod.
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

// PL-8: one pod that hangs is told of, and neither makes the agent unhealthy nor
// keeps other pods from running.
func TestAHungPodIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := embedded.New(embedded.Config{})
		require.NoError(t, err)
		cc, err := rt.Dial()
		require.NoError(t, err)
		client, err := cri.New(cc, cri.Config{})
		require.NoError(t, err)
		var seen told
		a, err := agent.New(
			agent.WithNodeName("node"), agent.WithRootDir(t.TempDir()), agent.WithNode(agent.NodeConfig{DisableCgroups: true}), agent.WithStatusSink(&seen),
			agent.WithRuntime(hanging{client, "uid-stuck"}),
			agent.WithSource("api", podsource.NewMemory(sized("stuck", "1Mi", "0s=1Mi"), sized("well", "1Mi", "0s=1Mi"))),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		faults := a.InspectionErrors()
		healthy := a.Healthy()
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, cc.Close())
		require.NoError(t, rt.Close())
		require.NoError(t, healthy)
		require.Equal(t, corev1.PodRunning, seen.of("well").Phase)
		require.Len(t, faults, 1)
		require.ErrorContains(t, faults[0], "uid-stuck")
	})
}

// lateSource is a source that says nothing until it is told to.
type lateSource chan struct{}

func (l lateSource) Watch(ctx context.Context, hand func(podsource.Set)) error {
	select {
	case <-l:
		hand(podsource.Set{})
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// CG-2: what is dead in the runtime and known to no source stays until all
// sources have spoken: it may yet turn out that its status is wanted.
func TestNothingIsCollectedBeforeAllSourcesSpoke(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		pod := sized("former", "1Mi", "0s=1Mi")
		dir := t.TempDir()
		applied := client.Apply(t.Context(), pod, []runtime.Action{{Type: runtime.CreateSandbox}, {Type: runtime.StartContainer, Container: "main"}}, runtime.RunOptions{Dir: dir, LogDir: dir})
		require.Empty(t, applied.Failures)
		seen, err := client.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		require.NoError(t, client.Kill(t.Context(), pod, seen, runtime.Termination{GracePeriod: time.Second}))

		source := make(lateSource)
		start(agent.WithSource("memory", podsource.NewMemory(sized("web", "1Mi", "0s=1Mi"))), agent.WithSource("late", source))
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
