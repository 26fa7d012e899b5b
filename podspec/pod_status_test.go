package podspec_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

func TestIsTerminalPhase(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]bool{
		"": false, corev1.PodPending: false, corev1.PodRunning: false, corev1.PodUnknown: false,
		corev1.PodSucceeded: true, corev1.PodFailed: true,
	} {
		assert.Equal(t, want, podspec.IsTerminalPhase(phase), "phase %q", phase)
	}
}

// What the node does not set is kept as others have set it.
func TestIsNodeCondition(t *testing.T) {
	for _, own := range []corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled,
		corev1.DisruptionTarget, corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting,
	} {
		assert.True(t, podspec.IsNodeCondition(own), own)
	}
	assert.False(t, podspec.IsNodeCondition("example.com/gate"))
	assert.False(t, podspec.IsNodeCondition(""))
}
