package agent

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ReasonNotSynced is the reason of the conditions Ready and ContainersReady of a
// pod that no source has named yet.
const ReasonNotSynced = "SourceNotSynced"

// Pods returns the pods that this node runs, and those that have ended and are still
// desired, each with its newest status. They are read-only.
//
// A pod whose status was restored and that no source has delivered yet is returned as it
// is observed in the runtime now, with unknown readiness: it is neither restarted nor
// probed until its source has synced, and its status is not sent to sinks before.
func (a *Agent) Pods() []*corev1.Pod {
	pods := a.statuses.Pods()
	for i, pod := range pods {
		if a.statuses.IsRestored(pod.UID) && !terminal(pod.Status.Phase) {
			pods[i] = a.unadopted(pod)
		}
	}
	return pods
}

// unadopted returns a restored pod as it is observed now.
func (a *Agent) unadopted(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	why := "no source has named the pod yet"
	for _, u := range a.mux.Unsynced() {
		if u.Source == pod.Annotations[podspec.AnnotationSource] {
			why = u.Error()
		}
	}
	if a.ready.PodsKnown() {
		observed, _ := a.cache.Get(pod.UID)
		out.Status = status.Generate(pod, runtime.Report{Observed: observed}, pod.Status, a.nodeInfo(), time.Now())
	} else {
		out.Status = *pod.Status.DeepCopy()
		unobserved(&out.Status, why)
	}
	unproven(&out.Status, why)
	return &out
}

func terminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

// unobserved marks containers that were running as waiting.
func unobserved(st *corev1.PodStatus, why string) {
	st.Phase = corev1.PodUnknown
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				list[i].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: ReasonNotSynced, Message: why}}
			}
		}
	}
}

// unproven sets readiness to unknown.
func unproven(st *corev1.PodStatus, why string) {
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, ReasonNotSynced, why
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
