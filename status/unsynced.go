package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// ReasonNotSynced is the reason of the conditions Ready and ContainersReady of a
// restored pod that no source has delivered yet.
const ReasonNotSynced = "SourceNotSynced"

// View is what is known of the pods of a node now. All fields are required.
type View struct {
	Statuses ViewStatuses // *Manager is one
	PodCache interface {
		Get(uid types.UID) (runtime.Pod, bool)
	}
	RuntimeState interface{ PodsKnown() bool } // whether PodCache has the pods of the runtime
	WhyUnsynced  func(pod *corev1.Pod) string  // what is waited for before it is known whether the pod is desired
	NodeInfo     func() NodeInfo
}

// ViewStatuses has the pods with their statuses.
type ViewStatuses interface {
	Pods() []*corev1.Pod
	IsRestored(uid types.UID) bool
}

// Pods returns all pods with a status. For one that was restored and that no source has
// delivered yet, that is the status that Unsynced returns.
func (v View) Pods() []*corev1.Pod {
	pods := v.Statuses.Pods()
	for i, pod := range pods {
		if !v.Statuses.IsRestored(pod.UID) {
			continue
		}
		var observed *runtime.Pod
		if v.RuntimeState.PodsKnown() {
			p, _ := v.PodCache.Get(pod.UID)
			observed = &p
		}
		pods[i] = Unsynced(pod, observed, v.WhyUnsynced(pod), v.NodeInfo(), time.Now())
	}
	return pods
}

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
	for c := range podspec.ContainerStatuses(st) {
		if c.State.Running != nil {
			c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: ReasonNotSynced, Message: message}}
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
