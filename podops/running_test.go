package podops_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

func TestOperator_RunningPods(t *testing.T) {
	ready := []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady}}
	object := func(phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "a:1", Command: []string{"x"}}}}, Status: corev1.PodStatus{Phase: phase}}
	}
	app := []corev1.Container{{Name: "app", Image: "a:1"}}
	for name, c := range map[string]struct {
		observed runtime.Pod
		running  bool
		want     []corev1.Container
	}{
		"what runs of it": {runtime.Pod{Sandboxes: ready, Containers: []runtime.Container{
			{Name: "app", Image: "a:1", State: runtime.Running, Attempt: 1}, {Name: "app", Image: "a:1", State: runtime.Exited}, {Name: "init", State: runtime.Exited}, {Name: "next", State: runtime.Created},
		}}, true, app},
		"a sandbox alone":                   {runtime.Pod{Sandboxes: ready}, true, nil},
		"a container that lost its sandbox": {runtime.Pod{Containers: []runtime.Container{{Name: "app", Image: "a:1", State: runtime.Running}}}, true, app},
		"terminated":                        {runtime.Pod{Sandboxes: []runtime.Sandbox{{ID: "s"}}, Containers: []runtime.Container{{Name: "app", State: runtime.Exited}}}, false, nil},
		"nothing of it":                     {runtime.Pod{}, false, nil},
		"an object that runs":               {runtime.Pod{Object: object(corev1.PodRunning)}, true, app},
		"an object that is pending":         {runtime.Pod{Object: object(corev1.PodPending)}, false, nil},
		"an object that has ended":          {runtime.Pod{Object: object(corev1.PodFailed)}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := newWorld(t)
			w.pods = nil // whether it is desired does not matter
			c.observed.UID, c.observed.Namespace, c.observed.Name = "u9", "ns", "web"
			w.observed = map[types.UID]runtime.Pod{"u9": c.observed}
			pods, err := o.RunningPods(t.Context())
			require.NoError(t, err)
			if !c.running {
				assert.Empty(t, pods)
				return
			}
			require.Len(t, pods, 1)
			assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u9"}, Spec: corev1.PodSpec{Containers: c.want}}, pods[0])
		})
	}
}
