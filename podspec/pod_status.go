package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ReasonEvicted is the status reason of an evicted pod, as in the kubelet.
const ReasonEvicted = "Evicted"

// RejectedPrefix begins the status message of a rejected pod, as in the kubelet.
const RejectedPrefix = "Pod was rejected: "

// IsTerminalPhase reports whether a phase is Succeeded or Failed. A pod does not leave
// such a phase: none of its containers runs or will be started.
func IsTerminalPhase(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// IsRejected reports whether a status is that of a pod that the node has rejected: none of
// its containers was created.
func IsRejected(st *corev1.PodStatus) bool {
	return st.Phase == corev1.PodFailed && st.Reason != "" && strings.HasPrefix(st.Message, RejectedPrefix) &&
		len(st.InitContainerStatuses)+len(st.ContainerStatuses)+len(st.EphemeralContainerStatuses) == 0
}

// IsEvicted reports whether a status is that of a pod that was admitted and later evicted.
func IsEvicted(st *corev1.PodStatus) bool {
	return st.Phase == corev1.PodFailed && st.Reason == ReasonEvicted && !IsRejected(st)
}
