package syncloop

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// SL-11, SD-3: a static pod that was terminated because the node shut down starts again after the boot, also if its termination was
// only reported and not completed. A pod of an API server stays terminated.
func TestPodManager_StartsStaticPodsAfterNodeShutdown(t *testing.T) {
	failed := corev1.PodStatus{Phase: corev1.PodFailed, Reason: podspec.ReasonNodeShutdown, Message: podspec.MessageNodeShutdown}
	reported := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: podspec.MessageNodeShutdown,
	}}}
	p := newPods(t, func(c *PodManagerConfig) { c.Inspector = running(func(types.UID) bool { return false }) })
	maps.Copy(p.statuses.saved, map[types.UID]corev1.PodStatus{"static": failed, "static-reported": reported, "api": failed, "api-reported": reported})
	assert.Equal(t, []string{"forget static", "create static "}, p.do(podsource.Add, newPod("static", static)))
	assert.Equal(t, []string{"forget static-reported", "create static-reported "}, p.do(podsource.Add, newPod("static-reported", static)))
	assert.Equal(t, []string{"create api Failed"}, p.do(podsource.Add, newPod("api")))
	assert.Equal(t, []string{"create api-reported ", "kill api-reported: Terminated true: " + podspec.MessageNodeShutdown}, p.do(podsource.Add, newPod("api-reported")))
}

// SL-11: so does one whose manifest was removed, and is there again. One that a container has ended stays as it is.
func TestPodManager_StartsStaticPodsThatWereRemoved(t *testing.T) {
	succeeded, late := corev1.PodStatus{Phase: corev1.PodSucceeded}, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded"}
	always, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever
	with := func(policy corev1.RestartPolicy, init, main *corev1.ContainerRestartPolicy) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = policy
			pod.Spec.InitContainers, pod.Spec.Containers = []corev1.Container{{RestartPolicy: init}}, []corev1.Container{{RestartPolicy: main}}
		}
	}
	for _, tt := range []struct {
		name   string
		status corev1.PodStatus
		edits  []func(*corev1.Pod)
		starts bool
	}{
		{"always", succeeded, []func(*corev1.Pod){static, with(corev1.RestartPolicyAlways, nil, nil)}, true},
		{"sidecar", succeeded, []func(*corev1.Pod){static, with(corev1.RestartPolicyAlways, &always, &always)}, true},
		{"failed", corev1.PodStatus{Phase: corev1.PodFailed}, []func(*corev1.Pod){static, with(corev1.RestartPolicyAlways, nil, nil)}, true},
		{"never", succeeded, []func(*corev1.Pod){static, with(corev1.RestartPolicyNever, nil, nil)}, false},
		{"init container with own policy", succeeded, []func(*corev1.Pod){static, with(corev1.RestartPolicyAlways, &never, nil)}, false},
		{"container with own policy", succeeded, []func(*corev1.Pod){static, with(corev1.RestartPolicyAlways, nil, &never)}, false},
		{"late", late, []func(*corev1.Pod){static, with(corev1.RestartPolicyAlways, nil, nil)}, false},
		{"not static", succeeded, []func(*corev1.Pod){with(corev1.RestartPolicyAlways, nil, nil)}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) { c.Inspector = running(func(types.UID) bool { return false }) })
			p.statuses.saved["a"] = tt.status
			want := []string{"create a " + string(tt.status.Phase)}
			if tt.starts {
				want = []string{"forget a", "create a "}
			}
			assert.Equal(t, want, p.do(podsource.Add, newPod("a", tt.edits...)))
		})
	}
}
