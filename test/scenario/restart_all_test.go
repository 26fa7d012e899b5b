package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
)

// RT-4, RT-6: a sidecar that is stopped because its pod is done does not start the pod once more, though
// its exit code fits a rule that restarts all containers.
func TestRestartAll_NotByTheEndOfThePod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := agenttest.PodWithPolicy("job", corev1.RestartPolicyNever, "stop-after=1s", "term-exit-code=143")
	pod.Annotations["main.sim.sublet.dev/run-for"] = "10s"
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "side", Image: "app:1", RestartPolicy: &always,
		RestartPolicyRules: []corev1.ContainerRestartRule{{
			Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpNotIn, Values: []int32{0}},
		}},
	}}
	agenttest.OnMachine(t, node.Config{}, func(t *testing.T, m *agenttest.Machine) {
		a := m.Start(agent.WithSource("file", podsource.NewMemory(pod)))
		time.Sleep(5 * time.Minute)
		st, err := a.Pod("default", "job")
		require.NoError(t, err)
		require.Equal(t, corev1.PodSucceeded, st.Status.Phase)
		assert.Zero(t, st.Status.ContainerStatuses[0].RestartCount)
		assert.EqualValues(t, 143, st.Status.InitContainerStatuses[0].State.Terminated.ExitCode)
		a.Stop()
	})
}
