package status_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// An API server rejects a status in which a container has left the state Terminated although by its exit
// code and the policy it is done. One that is to start again all the same is never reported in it.
func TestGenerate_RestartAfterSuccess(t *testing.T) {
	c, i := exited("c", 0, 0), oomKilled(exited("i", 0, 0))
	for _, tc := range []struct {
		spec, name string
		terminated bool
	}{
		{"policy=OnFailure main:c", c.Name, false},
		{"policy=Always main:c", c.Name, true},
		{"policy=Never main:c", c.Name, true},
		{"policy=OnFailure init:i main:c", i.Name, false},
		{"policy=Always init:i main:c", i.Name, true},
	} {
		p, observed := pod(strings.Fields(tc.spec)...), c
		if tc.name == "i" {
			observed = i
		}
		unhealthy := runtime.PodProbeResults{c.ID: {Liveness: runtime.ProbeFailure}}
		st := generate(p, runtime.Report{Observed: view(observed), Probes: unhealthy})
		cs := slices.Concat(st.InitContainerStatuses, st.ContainerStatuses)[0]
		assert.Equal(t, tc.terminated, cs.State.Terminated != nil, tc.spec)
		if tc.terminated {
			continue
		}
		require.NotNil(t, cs.State.Waiting, tc.spec)
		require.NotNil(t, cs.LastTerminationState.Terminated, tc.spec)
		assert.Equal(t, cs.ContainerID, cs.LastTerminationState.Terminated.ContainerID)
		assert.NotEqual(t, corev1.PodSucceeded, st.Phase)

		backOff := map[string]runtime.Failure{tc.name: {Reason: "CrashLoopBackOff"}}
		st = generateAfter(st, p, runtime.Report{Observed: view(observed), Probes: unhealthy, Failures: backOff})
		cs = slices.Concat(st.InitContainerStatuses, st.ContainerStatuses)[0]
		assert.Equal(t, "CrashLoopBackOff", cs.State.Waiting.Reason)
		end := &runtime.Termination{GracePeriod: time.Second}
		st = generateAfter(st, p, runtime.Report{Observed: view(observed), Probes: unhealthy, Termination: end})
		assert.NotNil(t, slices.Concat(st.InitContainerStatuses, st.ContainerStatuses)[0].State.Terminated, "it does not start again")
	}
}
