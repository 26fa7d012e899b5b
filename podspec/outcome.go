package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ReasonEvicted is the reason of a pod that its node has evicted.
const ReasonEvicted = "Evicted"

// RejectedPrefix is what the kubelet puts before the message of a pod that it has
// rejected.
const RejectedPrefix = "Pod was rejected: "

// IsTerminalPhase reports whether a phase is Succeeded or Failed. A pod does not leave
// such a phase: none of its containers runs or will be started.
func IsTerminalPhase(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// IsRejected reports whether a status is that of a pod that its node has not admitted:
// none of its containers was ever made.
func IsRejected(st *corev1.PodStatus) bool {
	return st.Phase == corev1.PodFailed && st.Reason != "" && strings.HasPrefix(st.Message, RejectedPrefix) &&
		len(st.InitContainerStatuses)+len(st.ContainerStatuses)+len(st.EphemeralContainerStatuses) == 0
}

// IsEvicted reports whether a status is that of a pod that ran and was ended by its
// node, to free what it used or because it used more than it may.
func IsEvicted(st *corev1.PodStatus) bool {
	return st.Phase == corev1.PodFailed && st.Reason == ReasonEvicted && !IsRejected(st)
}
