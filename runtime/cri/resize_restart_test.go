package cri

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// A container whose resize policy wants a restart for memory is restarted for another request too, which no runtime reports; one without
// that policy is left alone, and so is one that an earlier agent has made.
func TestApply_RestartsForMemoryRequest(t *testing.T) {
	for _, tc := range []struct {
		name     string
		policy   corev1.ResourceResizeRestartPolicy
		before   string
		restarts bool
	}{
		{"restart", corev1.RestartContainer, "64Mi", true},
		{"a first request", corev1.RestartContainer, "", true},
		{"no restart", corev1.NotRequired, "64Mi", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake()
			c := f.client(t, Config{})
			pod := onePod("main")
			main := &pod.Spec.Containers[0]
			main.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: tc.policy}}
			main.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}
			if tc.before != "" {
				main.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(tc.before)}
			}
			plan := func(observed runtime.Pod) []runtime.Action {
				return runtime.Plan(pod, runtime.PlanInput{Pod: observed}, time.Now())
			}
			inspect := func() runtime.Pod {
				for id, st := range f.containers {
					st.Resources = &v1.ContainerResources{Linux: f.configs[id].GetLinux().GetResources()}
				}
				observed, err := f.client(t, Config{}).Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				return observed
			}
			running(t, f, c, pod)
			observed := inspect()
			require.Empty(t, plan(observed))

			main.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}
			actions := plan(observed)
			if !tc.restarts {
				require.Empty(t, actions)
				return
			}
			require.Len(t, actions, 2)
			assert.Equal(t, []runtime.ActionType{runtime.KillContainer, runtime.StartContainer}, []runtime.ActionType{actions[0].Type, actions[1].Type})
			require.Empty(t, c.Apply(t.Context(), pod, actions, runtime.RunOptions{}).Failures)
			observed = inspect()
			assert.Equal(t, uint32(1), observed.Containers[0].Attempt)
			assert.Equal(t, "128Mi", observed.Containers[0].Resources.MemoryRequest.String())
			require.Empty(t, plan(observed), "once is enough")

			observed.Containers[0].Resources.MemoryRequest = nil // as of an earlier agent
			main.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
			require.Empty(t, plan(observed))
		})
	}
}
