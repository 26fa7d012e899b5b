package agent_test

import (
	"slices"
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

// ST-3: that a pod has its sandbox and address is reported while its containers wait for their image,
// and stays so when the pull fails.
func TestAgent_ReportsTheSandboxDuringAPull(t *testing.T) {
	for name, script := range map[string][]string{
		"long":  {"pull-delay=10m"},
		"fails": {"pull-delay=10m", "pull-error=no route to host"},
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.OnMachine(t, node.Config{}, func(t *testing.T, n *agenttest.Machine) {
				pod := agenttest.Pod("web", script...)
				pod.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
				var statuses agenttest.Statuses
				a := n.Start(agent.WithSource("http", podsource.NotStatic(podsource.NewMemory(pod))), agent.WithStatusSink(&statuses))
				defer a.Stop()
				ready := func() corev1.PodCondition {
					conditions := statuses.Of("web").Conditions
					i := slices.IndexFunc(conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReadyToStartContainers })
					require.GreaterOrEqual(t, i, 0)
					return conditions[i]
				}
				time.Sleep(10 * time.Second)
				during := ready()
				assert.Equal(t, corev1.ConditionTrue, during.Status, "its containers wait only for the image")
				st := statuses.Of("web")
				assert.Equal(t, corev1.PodPending, st.Phase)
				assert.NotEmpty(t, st.PodIP)
				assert.Equal(t, "ContainerCreating", st.ContainerStatuses[0].State.Waiting.Reason)
				time.Sleep(10 * time.Minute)
				assert.Equal(t, during, ready())
			})
		})
	}
}
