package status_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// ST-4: an init container that has to run once more in a new sandbox, and cannot be started, says why.
func TestGenerate_InitContainerCannotRunOnceMore(t *testing.T) {
	failed := map[string]runtime.Failure{"i": {Reason: "ErrImagePull", Message: "no route to the registry"}}
	i, c := exited("i", 0, 0), exited("c", 0, 137)
	lost := view(i, c)
	lost.Sandboxes[0].State = runtime.SandboxNotReady
	made := view(i, c)
	made.Sandboxes = []runtime.Sandbox{{ID: "s1", Attempt: 1, State: runtime.SandboxReady, IPs: []string{"10.0.0.8"}}, lost.Sandboxes[0]}
	collected := made
	collected.Containers = []runtime.Container{c}
	same := view(i)
	for name, tc := range map[string]struct {
		spec     string
		observed runtime.Pod
		waits    bool
	}{
		"always":                        {"init:i main:c", made, true},
		"it was collected":              {"init:i main:c", collected, true},
		"an API server would reject it": {"policy=OnFailure init:i main:c", made, false},
		"in the same sandbox":           {"init:i main:c", same, false},
		"without a sandbox":             {"init:i main:c", lost, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(strings.Fields(tc.spec)...)
			before := generate(p, runtime.Report{Observed: lost})
			require.Equal(t, corev1.PodRunning, before.Phase)
			st := generateAfter(before, p, runtime.Report{Observed: tc.observed, Failures: failed})
			cs := st.InitContainerStatuses[0]
			if !tc.waits {
				require.NotNil(t, cs.State.Terminated)
				return
			}
			require.NotNil(t, cs.State.Waiting)
			assert.Equal(t, corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no route to the registry"}, *cs.State.Waiting)
			assert.Equal(t, "containerd://"+i.ID, cs.LastTerminationState.Terminated.ContainerID)
			assert.Equal(t, corev1.PodPending, st.Phase)
		})
	}
}

// ST-2: a pod whose sidecar has yet to start in a new sandbox is Pending, as one whose init container runs there.
func TestGenerate_SidecarStartsOnceMore(t *testing.T) {
	p := pod("sidecar:s", "main:c")
	p.Spec.InitContainers[0].StartupProbe = &corev1.Probe{}
	s, c := running("s", 1), exited("c", 0, 137)
	s.SandboxID = "s1"
	made := view(s, c)
	made.Sandboxes = []runtime.Sandbox{{ID: "s1", Attempt: 1, State: runtime.SandboxReady, IPs: []string{"10.0.0.8"}}, {ID: "s0"}}
	starts := runtime.PodProbeResults{s.ID: {}}
	before := generate(p, runtime.Report{Observed: view(c, exited("s", 0, 137))})
	require.Equal(t, corev1.PodRunning, before.Phase)

	st := generateAfter(before, p, runtime.Report{Observed: made, Probes: starts})
	assert.Equal(t, corev1.PodPending, st.Phase)
	st = generateAfter(st, p, runtime.Report{Observed: listed(made), Probes: starts})
	assert.Equal(t, corev1.PodPending, st.Phase, "a listing has nothing else to say")
	st = generateAfter(before, p, runtime.Report{Observed: listed(made), Probes: starts})
	assert.Equal(t, corev1.PodRunning, st.Phase, "nor this")
	passed := runtime.PodProbeResults{s.ID: {Startup: runtime.ProbeSuccess}}
	st = generateAfter(before, p, runtime.Report{Observed: made, Probes: passed})
	assert.Equal(t, corev1.PodRunning, st.Phase)

	next := running("c", 1) // the sidecar restarts beside it
	next.SandboxID = "s1"
	made.Containers = append([]runtime.Container{next}, made.Containers...)
	st = generateAfter(before, p, runtime.Report{Observed: made, Probes: starts})
	assert.Equal(t, corev1.PodRunning, st.Phase)
}
