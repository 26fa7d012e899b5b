package agent_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
)

// withAgent runs f beside an agent with simulated pods.
func withAgent(t *testing.T, pods []*corev1.Pod, f func(t *testing.T, a *agent.Agent)) {
	t.Helper()
	root, logs := t.TempDir(), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, err := agent.New(
			agent.WithNodeName("n"), agent.WithRootDir(root), agent.WithNode(node.Config{DisableCgroups: true, PodLogsDir: logs}),
			agent.WithSimulatedRuntime(), agent.WithSource("memory", podsource.NewMemory(pods...)),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		f(t, a)
		cancel()
		require.NoError(t, <-done)
	})
}

func webStatus(t *testing.T, a *agent.Agent) (*corev1.Pod, corev1.ContainerStatus) {
	t.Helper()
	pod, err := a.Pod("default", "web")
	require.NoError(t, err)
	require.NotEmpty(t, pod.Status.ContainerStatuses)
	return pod, pod.Status.ContainerStatuses[0]
}

// OP-8
func TestAgent_Restart(t *testing.T) {
	withAgent(t, []*corev1.Pod{agenttest.Pod("web")}, func(t *testing.T, a *agent.Agent) {
		pod, before := webStatus(t, a)
		require.Equal(t, corev1.PodRunning, pod.Status.Phase)
		require.NoError(t, a.Restart(t.Context(), "default", "web", before.Name))
		time.Sleep(time.Minute)
		pod, after := webStatus(t, a)
		assert.Equal(t, corev1.PodRunning, pod.Status.Phase)
		assert.Equal(t, before.RestartCount+1, after.RestartCount)
		assert.NotNil(t, after.State.Running)
		sandbox := func() string {
			p, _ := a.Components().PodCache.Get(pod.UID)
			require.NotNil(t, p.ReadySandbox())
			return p.ReadySandbox().ID
		}
		first := sandbox()
		require.NoError(t, a.Restart(t.Context(), "default", "web", ""))
		time.Sleep(time.Minute)
		pod, restarted := webStatus(t, a)
		assert.Equal(t, corev1.PodRunning, pod.Status.Phase)
		assert.NotNil(t, restarted.State.Running)
		assert.NotEqual(t, after.ContainerID, restarted.ContainerID)
		assert.NotEqual(t, first, sandbox())

		require.ErrorIs(t, a.Restart(t.Context(), "default", "none", ""), runtime.ErrNotFound)
		require.ErrorIs(t, a.Restart(t.Context(), "default", "web", "none"), runtime.ErrNotFound)
	})
}

// OP-8: a restart returns also for a pod whose containers are not started once more by their policy.
func TestAgent_RestartUnderNever(t *testing.T) {
	withAgent(t, []*corev1.Pod{agenttest.PodWithPolicy("web", corev1.RestartPolicyNever)}, func(t *testing.T, a *agent.Agent) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, a.Restart(ctx, "default", "web", ""))
		time.Sleep(time.Second)
		restarted, _ := webStatus(t, a)
		assert.Equal(t, corev1.PodFailed, restarted.Status.Phase)
	})
}

// OP-8: a drain right after a restart finds the pod.
func TestAgent_DrainAfterRestart(t *testing.T) {
	withAgent(t, []*corev1.Pod{agenttest.Pod("web")}, func(t *testing.T, a *agent.Agent) {
		require.NoError(t, a.Restart(t.Context(), "default", "web", ""))
		pod, err := a.Pod("default", "web")
		require.NoError(t, err, "it is not missing for a moment")
		assert.NotEqual(t, corev1.PodFailed, pod.Status.Phase)
		require.NoError(t, a.Drain(t.Context(), podops.DrainOptions{}))
		pod, err = a.Pod("default", "web")
		require.NoError(t, err)
		assert.Equal(t, "The node was drained by request", pod.Status.Message)
	})
}

// OP-9
func TestAgent_EvictAndDrain(t *testing.T) {
	withAgent(t, []*corev1.Pod{agenttest.Pod("web"), agenttest.Pod("db")}, func(t *testing.T, a *agent.Agent) {
		require.NoError(t, a.Evict(t.Context(), "default", "web", time.Second))
		pod, _ := webStatus(t, a)
		assert.Equal(t, corev1.PodFailed, pod.Status.Phase)
		assert.Equal(t, "Evicted", pod.Status.Reason)
		require.NoError(t, a.Drain(t.Context(), podops.DrainOptions{Filter: func(*corev1.Pod) bool { return false }}))
		db, err := a.Pod("default", "db")
		require.NoError(t, err)
		assert.Equal(t, corev1.PodRunning, db.Status.Phase)
		require.NoError(t, a.Drain(t.Context(), podops.DrainOptions{}))
		db, err = a.Pod("default", "db")
		require.NoError(t, err)
		assert.Equal(t, corev1.PodFailed, db.Status.Phase)
		assert.Equal(t, "The node was drained by request", db.Status.Message)
		require.ErrorIs(t, a.Evict(t.Context(), "default", "none", 0), runtime.ErrNotFound)
	})
}

func TestAgent_Watch(t *testing.T) {
	withAgent(t, []*corev1.Pod{agenttest.Pod("web")}, func(t *testing.T, a *agent.Agent) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var types []watch.EventType
		for event := range a.Watch(ctx) {
			if types = append(types, event.Type); len(types) == 1 {
				assert.Equal(t, corev1.PodRunning, event.Pod.Status.Phase)
				go func() { _ = a.Evict(ctx, "default", "web", time.Second) }()
			}
			if event.Pod.Status.Phase == corev1.PodFailed {
				break
			}
		}
		require.NotEmpty(t, types)
		assert.Equal(t, watch.Added, types[0])
		assert.Equal(t, watch.Modified, types[len(types)-1])
	})
}

// Without a streaming server there are logs, and errors that say what is missing.
func TestAgent_LogsAndStreams(t *testing.T) {
	withAgent(t, []*corev1.Pod{agenttest.Pod("web")}, func(t *testing.T, a *agent.Agent) {
		var out bytes.Buffer
		require.ErrorIs(t, a.Logs(t.Context(), "default", "none", &corev1.PodLogOptions{}, &out, &out), runtime.ErrNotFound)
		require.ErrorIs(t, a.Logs(t.Context(), "default", "web", &corev1.PodLogOptions{Previous: true}, &out, &out), runtime.ErrNotFound)
		require.Error(t, a.Exec(t.Context(), "default", "web", "", []string{"true"}, podstream.Options{Stdout: &out}))
		require.Error(t, a.Attach(t.Context(), "default", "web", "", podstream.Options{Stdout: &out}))
		_, err := a.PortForward(t.Context(), "default", "web")
		require.Error(t, err)
		require.Error(t, a.Exec(t.Context(), "default", "none", "", []string{"true"}, podstream.Options{Stdout: &out}))
		require.Error(t, a.Attach(t.Context(), "default", "none", "", podstream.Options{Stdout: &out}))
		_, err = a.PortForward(t.Context(), "default", "none")
		require.ErrorIs(t, err, runtime.ErrNotFound)
	})
}
