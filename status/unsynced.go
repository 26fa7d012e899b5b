package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// ReasonNotSynced is the reason of the conditions Ready and ContainersReady of a
// restored pod that no source has delivered yet.
const ReasonNotSynced = "SourceNotSynced"

// Unsynced returns a copy of a restored pod that its source has not delivered yet, with
// the status that can be known: observed is its state in the runtime, zero if it is
// not there, or nil if that is not known either. Readiness is unknown, because nothing probes the pod. message says
// what is waited for. A pod in a terminal phase is returned as it is. It is pure.
func Unsynced(pod *corev1.Pod, observed *runtime.Pod, message string, env NodeInfo, now time.Time) *corev1.Pod {
	if podspec.IsTerminalPhase(pod.Status.Phase) {
		return pod
	}
	out := *pod
	if observed != nil {
		report := runtime.Report{Observed: *observed}
		if report.Observed.ObservedAt.IsZero() { // it is not in the runtime
			report.Observed.ObservedAt = now
		}
		out.Status = Generate(pod, report, pod.Status, env, now)
	} else {
		out.Status = *pod.Status.DeepCopy()
		setUnobserved(&out.Status, message)
	}
	setUnproven(&out.Status, message)
	return &out
}

// setUnobserved marks containers that were running as waiting.
func setUnobserved(st *corev1.PodStatus, message string) {
	st.Phase = corev1.PodUnknown
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				list[i].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: ReasonNotSynced, Message: message}}
			}
		}
	}
}

// setUnproven sets readiness to unknown.
func setUnproven(st *corev1.PodStatus, message string) {
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, ReasonNotSynced, message
		}
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			if list[i].State.Terminated == nil { // an init container that has succeeded is ready for good
				list[i].Ready = false
			}
		}
	}
}
