package status_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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

// viewed is all that a View needs.
type viewed struct {
	pods      []*corev1.Pod
	restored  types.UID
	podsKnown bool
}

func (v viewed) Pods() []*corev1.Pod               { return v.pods }
func (v viewed) IsRestored(uid types.UID) bool     { return uid == v.restored }
func (v viewed) PodsKnown() bool                   { return v.podsKnown }
func (v viewed) Get(types.UID) (runtime.Pod, bool) { return view(running("c", 0)), true }

// SR-10: only a pod that no source has delivered yet is shown as unproven, and only what
// was observed is shown as running.
func TestView_Pods(t *testing.T) {
	restored, delivered := pod("policy=Always", "main:c"), pod("policy=Always", "main:c")
	restored.UID, delivered.UID = "restored", "delivered"
	restored.Status = generate(restored, runtime.Report{Observed: view(running("c", 0))})
	for podsKnown, phase := range map[bool]corev1.PodPhase{true: corev1.PodRunning, false: corev1.PodUnknown} {
		v := viewed{pods: []*corev1.Pod{delivered, restored}, restored: "restored", podsKnown: podsKnown}
		pods := status.View{
			Statuses: v, PodCache: v, RuntimeState: v, WhyUnsynced: func(pod *corev1.Pod) string { return "waiting for " + string(pod.UID) },
			NodeInfo: func() status.NodeInfo { return status.NodeInfo{HostIPs: []string{"10.0.0.1"}} },
		}.Pods()
		require.Len(t, pods, 2)
		assert.Same(t, delivered, pods[0])
		assert.Equal(t, phase, pods[1].Status.Phase)
		for _, c := range pods[1].Status.Conditions {
			if c.Type == corev1.PodReady {
				assert.Equal(t, "waiting for restored", c.Message)
			}
		}
		if podsKnown {
			assert.Equal(t, "10.0.0.1", pods[1].Status.HostIP)
		}
	}
}
