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

func TestIsShutDown(t *testing.T) {
	disrupted := func(status corev1.ConditionStatus, message string) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: message}, {Type: corev1.DisruptionTarget, Status: status, Message: message}}
	}
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"terminated":            {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Terminated", Message: podspec.MessageNodeShutdown}, true},
		"about to be":           {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: disrupted(corev1.ConditionTrue, podspec.MessageNodeShutdown)}, true},
		"condition not true":    {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: disrupted(corev1.ConditionFalse, podspec.MessageNodeShutdown)}, false},
		"evicted":               {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: disrupted(corev1.ConditionTrue, "low on memory")}, false},
		"other reason":          {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: podspec.MessageNodeShutdown}, false},
		"other message":         {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Terminated", Message: "by the user"}, false},
		"succeeded before":      {corev1.PodStatus{Phase: corev1.PodSucceeded, Conditions: disrupted(corev1.ConditionTrue, podspec.MessageNodeShutdown)}, false},
		"running as if nothing": {corev1.PodStatus{Phase: corev1.PodRunning}, false},
	} {
		assert.Equal(t, tc.want, podspec.IsShutDown(&tc.status), name)
	}
}

func TestContainerStatuses(t *testing.T) {
	st := &corev1.PodStatus{
		ContainerStatuses:          []corev1.ContainerStatus{{Name: "regular"}, {Name: "other"}},
		InitContainerStatuses:      []corev1.ContainerStatus{{Name: "init"}},
		EphemeralContainerStatuses: []corev1.ContainerStatus{{Name: "ephemeral"}},
	}
	var names []string
	for c := range podspec.ContainerStatuses(st) {
		names = append(names, c.Name)
		c.Ready = true
	}
	assert.Equal(t, []string{"init", "regular", "other", "ephemeral"}, names)
	assert.True(t, st.ContainerStatuses[1].Ready, "they are not copies")
	for c := range podspec.ContainerStatuses(st) {
		if c.Name == "regular" {
			break
		}
		assert.Equal(t, "init", c.Name)
	}
}

func TestWasCreated(t *testing.T) {
	ended := corev1.ContainerState{Terminated: new(corev1.ContainerStateTerminated)}
	for name, tc := range map[string]struct {
		status corev1.ContainerStatus
		want   bool
	}{
		"waits for the first time": {corev1.ContainerStatus{State: corev1.ContainerState{Waiting: new(corev1.ContainerStateWaiting)}}, false},
		"created, not started":     {corev1.ContainerStatus{ContainerID: "r://1"}, true},
		"ended before":             {corev1.ContainerStatus{LastTerminationState: ended}, true},
		"restarted":                {corev1.ContainerStatus{RestartCount: 1}, true},
		"rejected with its pod":    {corev1.ContainerStatus{State: ended}, false},
	} {
		assert.Equal(t, tc.want, podspec.WasCreated(&tc.status), name)
	}
}
