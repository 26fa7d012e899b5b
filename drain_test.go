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
	"github.com/sublet-dev/agent/podsource"
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
			onSourcesNode(t, func(t *testing.T, n *sourcesNode) {
				var sink phasesSink
				src := podsource.NewMemory(tt.pod)
				drain := agent.WithShutdownPolicy(agent.ShutdownPolicy{Drain: true})
				_, stop := n.start(src, agent.WithStatusSink(&sink), drain)
				time.Sleep(30 * time.Second)
				stop()
				assert.Zero(t, n.running())
				assert.Equal(t, tt.phases, sink.all())
				logs, err := filepath.Glob(filepath.Join(n.root, "logs", "default_web_*", "main", "*.log"))
				require.NoError(t, err)
				assert.NotEmpty(t, logs, "logs are kept for the operator of the node")
				statuses, err := os.ReadDir(filepath.Join(n.root, "statuses"))
				require.NoError(t, err)
				assert.Len(t, statuses, 1)

				_, stop = n.start(src)
				defer stop()
				time.Sleep(20 * time.Second)
				assert.Equal(t, tt.restarts, n.running() == 1)
			})
		})
	}
}

// SL-7: pods of a source that has not synced yet are drained as well.
func TestDrain_KeepsPodsOfASilentSource(t *testing.T) {
	onSourcesNode(t, func(t *testing.T, n *sourcesNode) {
		src := podsource.NewMemory(agenttest.Pod("web", "output=hello", "output-every=1s"))
		_, stop := n.start(src)
		time.Sleep(time.Minute)
		stop()
		require.Equal(t, 1, n.running())

		var sink phasesSink
		_, stop = n.start(offline(nil, nil), agent.WithStatusSink(&sink), agent.WithShutdownPolicy(agent.ShutdownPolicy{Drain: true}))
		time.Sleep(time.Minute)
		stop()
		assert.Zero(t, n.running())
		assert.Equal(t, []string{"Running"}, sink.all())

		_, stop = n.start(src)
		defer stop()
		time.Sleep(10 * time.Second)
		assert.Equal(t, 1, n.running())
	})
}
