package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// CG-1, CG-2: where no dead container is to be kept, one is while it decides
// whether its container is started again, and none beside one that runs; a pod's
// init containers are not run twice for that.
func TestOnlyWhatDecidesIsKept(t *testing.T) {
	inside(t, func(t *testing.T, _ *embedded.Runtime, client *cri.Client, start func(...agent.Option) *agent.Agent) {
		var seen told
		pod := sized("crash", "1Mi", "0s=1Mi")
		pod.Annotations["sim.sublet.dev/run-for"] = "20s"
		pod.Annotations["sim.sublet.dev/exit-code"] = "3"
		first := pod.Spec.Containers[0].DeepCopy()
		first.Name = "first"
		pod.Annotations["first.sim.sublet.dev/run-for"] = "1s"
		pod.Annotations["first.sim.sublet.dev/exit-code"] = "0"
		pod.Spec.InitContainers = []corev1.Container{*first}
		start(
			agent.WithSource("memory", podsource.NewMemory(pod)), agent.WithStatusSink(&seen),
			agent.WithContainerGC(containergc.Policy{PerContainer: containergc.KeepNeeded}),
		)
		ran, waited := 0, 0
		for range 300 {
			time.Sleep(5 * time.Second)
			p, err := client.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			dead, runs := 0, false
			for _, c := range p.Containers {
				if c.Name == "first" {
					require.Zero(t, c.Attempt, "it has done its work")
					continue
				}
				runs = runs || c.State == runtime.Running && time.Since(c.Started) > time.Second
				if c.State == runtime.Exited {
					dead++
				}
			}
			require.LessOrEqual(t, dead, 1)
			if runs {
				require.Zero(t, dead, "nothing hangs on it any more")
				ran++
			} else {
				waited++
			}
		}
		require.Greater(t, ran, 10)
		require.Greater(t, waited, 10)
		require.Greater(t, seen.of("crash").ContainerStatuses[0].RestartCount, int32(5))
	})
}
