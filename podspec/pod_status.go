package podspec

import (
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Reasons in the status of a pod that the node has ended, as in the kubelet: because it
// lacked resources, or in favour of a critical pod.
const (
	ReasonEvicted   = "Evicted"
	ReasonPreempted = "Preempting"
)

// Reason and message of a pod that was terminated because the node shuts down, as in the kubelet.
const (
	ReasonNodeShutdown  = "Terminated"
	MessageNodeShutdown = "Pod was terminated in response to imminent node shutdown."
)

// RejectedPrefix begins the status message of a rejected pod, as in the kubelet.
const RejectedPrefix = "Pod was rejected: "

// IsTerminalPhase reports whether a phase is Succeeded or Failed. A pod does not leave
// such a phase: none of its containers runs or will be started.
func IsTerminalPhase(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// SaysRejected reports whether a status is that of a pod that the node has rejected. It may
// have run before, as until the node was started again: then it has the containers of that run.
func SaysRejected(st *corev1.PodStatus) bool {
	return st.Phase == corev1.PodFailed && st.Reason != "" && strings.HasPrefix(st.Message, RejectedPrefix)
}

// IsRejected reports whether a status is that of a pod that the node has rejected: none of
// its containers was created.
func IsRejected(st *corev1.PodStatus) bool {
	return SaysRejected(st) && len(st.InitContainerStatuses)+len(st.ContainerStatuses)+len(st.EphemeralContainerStatuses) == 0
}

// IsEvicted reports whether a status is that of a pod that was admitted and later evicted
// or preempted.
func IsEvicted(st *corev1.PodStatus) bool {
	return st.Phase == corev1.PodFailed && (st.Reason == ReasonEvicted || st.Reason == ReasonPreempted) && !IsRejected(st)
}

// IsShutDown reports whether a status is that of a pod that was terminated because the node shuts down, or is about to be.
func IsShutDown(st *corev1.PodStatus) bool {
	if st.Phase == corev1.PodFailed {
		return st.Reason == ReasonNodeShutdown && st.Message == MessageNodeShutdown
	}
	return !IsTerminalPhase(st.Phase) && slices.ContainsFunc(st.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Message == MessageNodeShutdown
	})
}

// ContainerStatuses iterates over the statuses of all containers in the order init, regular,
// ephemeral, as pointers into st.
func ContainerStatuses(st *corev1.PodStatus) iter.Seq[*corev1.ContainerStatus] {
	return func(yield func(*corev1.ContainerStatus) bool) {
		for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// WasCreated reports whether a status is that of a container that was created at least
// once, and so counts as an attempt.
func WasCreated(c *corev1.ContainerStatus) bool {
	return c.ContainerID != "" || c.LastTerminationState.Terminated != nil || c.RestartCount > 0
}

// IsNodeCondition reports whether the node sets conditions of the type in the status of
// a pod. The kubelet sets the same; all others belong to other components.
func IsNodeCondition(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
		corev1.PodScheduled, corev1.DisruptionTarget, corev1.PodResizePending, corev1.PodResizeInProgress,
		corev1.AllContainersRestarting:
		return true
	default:
		return false
	}
}
