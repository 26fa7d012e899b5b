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
