package status_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ST-4: the init container whose turn it was when its pod ended is reported as lost, as with a kubelet: kubectl would show a pod
// that has failed as one that initializes. Those whose turn was to come wait.
func TestGenerate_InitContainerNeverStarted(t *testing.T) {
	ran := func(p *corev1.Pod, all ...runtime.Container) corev1.PodStatus {
		return generate(p, runtime.Report{Observed: view(all...)})
	}
	three := pod("init:i", "sidecar:s", "init:j", "main:c")
	const lost, waits = "ContainerStatusUnknown", "PodInitializing"
	for name, tc := range map[string]struct {
		observed []runtime.Container
		previous corev1.PodStatus
		want     []string
	}{
		"none has run":            {nil, corev1.PodStatus{}, []string{lost, waits, waits}},
		"the first was made":      {[]runtime.Container{created("i", 0)}, corev1.PodStatus{}, []string{lost, waits, waits}},
		"the first has run":       {[]runtime.Container{exited("i", 0, 0)}, corev1.PodStatus{}, []string{"Completed", waits, waits}},
		"the next was made":       {[]runtime.Container{created("s", 0), exited("i", 0, 0)}, corev1.PodStatus{}, []string{"Completed", waits, waits}},
		"only the last is known":  {[]runtime.Container{exited("j", 0, 1)}, corev1.PodStatus{}, []string{lost, lost, "Error"}},
		"only the last was known": {nil, ran(three, exited("j", 0, 1)), []string{lost, lost, "Error"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := runtime.Report{Observed: view(tc.observed...), Termination: &runtime.Termination{Deleted: true}, Finished: true}
			st := status.Generate(three, r, tc.previous, status.NodeInfo{}, testTime)
			assert.Equal(t, corev1.PodFailed, st.Phase)
			var got []string
			for _, cs := range st.InitContainerStatuses {
				if cs.State.Terminated == nil {
					got = append(got, cs.State.Waiting.Reason)
					continue
				}
				got = append(got, cs.State.Terminated.Reason)
				assert.Equal(t, cs.State.Terminated.Reason == "Completed", cs.Ready)
			}
			assert.Equal(t, tc.want, got)
			assert.Equal(t, waits, st.ContainerStatuses[0].State.Waiting.Reason)
			assert.Equal(t, corev1.ConditionFalse, conditionOf(&st, corev1.PodInitialized).Status)

			next := status.Generate(three, r, st, status.NodeInfo{}, testTime)
			assert.Equal(t, st, next, "it stays so")
		})
	}
}
