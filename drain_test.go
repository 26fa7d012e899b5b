package agent_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// SL-7: a drain terminates containers and no pod. Statuses and logs stay and contain
// the result of each container. The next agent restarts what its policy restarts.
func TestDrain_KeepsPods(t *testing.T) {
	for name, tt := range map[string]struct {
		pod      *corev1.Pod
		phases   []string
		restarts bool
	}{
		"restarts always":       {agenttest.Pod("web", "output=hello", "output-every=1s"), []string{"Running"}, true},
		"restarts on failure":   {agenttest.PodWithPolicy("web", corev1.RestartPolicyOnFailure, "output=hello", "output-every=1s"), []string{"Running"}, true},
		"never restarts":        {agenttest.PodWithPolicy("web", corev1.RestartPolicyNever, "output=hello", "output-every=1s"), []string{"Running", "Failed"}, false},
		"had succeeded before":  {agenttest.PodWithPolicy("web", corev1.RestartPolicyNever, "output=hello", "output-every=1s", "run-for=1s"), []string{"Running", "Succeeded"}, false},
		"waits for its restart": {agenttest.Pod("web", "output=hello", "output-every=1s", "run-for=25s", "exit-code=1"), []string{"Running"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
				var sink phasesSink
				src := podsource.NewMemory(tt.pod)
				drain := agent.WithConfig(podworkers.DrainConfig{})
				a := n.Start(agent.WithSource("http", src), agent.WithStatusSink(&sink), drain)
				time.Sleep(30 * time.Second)
				a.Stop()
				assert.Empty(t, n.Running())
				assert.Equal(t, tt.phases, sink.all())
				logs, err := filepath.Glob(filepath.Join(n.Root, "logs", "default_web_*", "main", "*.log"))
				require.NoError(t, err)
				assert.NotEmpty(t, logs, "logs are kept for the operator of the node")
				statuses, err := os.ReadDir(filepath.Join(n.Root, "statuses"))
				require.NoError(t, err)
				assert.Len(t, statuses, 1)

				a = n.Start(agent.WithSource("http", src))
				defer a.Stop()
				time.Sleep(20 * time.Second)
				assert.Equal(t, tt.restarts, len(n.Running()) == 1)
			})
		})
	}
}

// SL-7: pods of a source that has not synced yet are drained as well.
func TestDrain_KeepsPodsOfASilentSource(t *testing.T) {
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
		src := podsource.NewMemory(agenttest.Pod("web", "output=hello", "output-every=1s"))
		a := n.Start(agent.WithSource("http", src))
		time.Sleep(time.Minute)
		a.Stop()
		require.Len(t, n.Running(), 1)

		var sink phasesSink
		a = n.Start(agent.WithSource("http", offline(nil, nil)), agent.WithStatusSink(&sink), agent.WithConfig(podworkers.DrainConfig{}))
		time.Sleep(time.Minute)
		a.Stop()
		assert.Empty(t, n.Running())
		assert.Equal(t, []string{"Running"}, sink.all())

		a = n.Start(agent.WithSource("http", src))
		defer a.Stop()
		time.Sleep(10 * time.Second)
		assert.Len(t, n.Running(), 1)
	})
}
