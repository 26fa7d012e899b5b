package status_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// SR-10: what is not known is not reported as good. A restored pod that no source has
// delivered yet is shown as it is observed, with unknown readiness.
func TestUnsynced(t *testing.T) {
	restored := pod("policy=Always", "init:i", "main:c", "main:d")
	ready := runtime.Report{Observed: view(exited("i", 0, 0), running("c", 0), running("d", 0))}
	restored.Status = generate(restored, ready)
	before := restored.DeepCopy()

	for name, tc := range map[string]struct {
		observed *runtime.Pod
		phase    corev1.PodPhase
		running  int
		waiting  string // reason of the containers that were running
	}{
		"observed running":    {new(view(exited("i", 0, 0), running("c", 0), running("d", 0))), corev1.PodRunning, 2, ""},
		"one observed exited": {new(view(exited("i", 0, 0), running("c", 0), exited("d", 0, 3))), corev1.PodRunning, 1, ""},
		"not observed so far": {nil, corev1.PodUnknown, 0, status.ReasonNotSynced},
		"known to be absent":  {&runtime.Pod{}, corev1.PodRunning, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := status.Unsynced(restored, tc.observed, "waiting for source http", status.NodeInfo{}, testTime)
			require.Equal(t, before, restored, "the argument is not changed")
			assert.Equal(t, tc.phase, got.Status.Phase)
			for _, c := range got.Status.Conditions {
				if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
					assert.Equal(t, corev1.ConditionUnknown, c.Status, c.Type)
					assert.Equal(t, status.ReasonNotSynced, c.Reason)
					assert.Equal(t, "waiting for source http", c.Message)
				}
			}
			assert.True(t, got.Status.InitContainerStatuses[0].Ready, "an init container that has succeeded is ready for good")
			runs := 0
			for _, c := range got.Status.ContainerStatuses {
				if c.State.Running != nil {
					runs++
				}
				if c.State.Terminated == nil {
					assert.False(t, c.Ready, c.Name)
				}
				if tc.waiting == status.ReasonNotSynced {
					require.NotNil(t, c.State.Waiting)
					assert.Equal(t, status.ReasonNotSynced, c.State.Waiting.Reason)
				}
			}
			assert.Equal(t, tc.running, runs)
		})
	}

	restored.Status.Phase = corev1.PodFailed
	assert.Same(t, restored, status.Unsynced(restored, nil, "", status.NodeInfo{}, testTime), "its end is known")
}
