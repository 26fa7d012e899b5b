package status

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Of a pod whose object the runtime does not have any more.
const (
	reasonPodLost  = "PodLost"
	messagePodLost = "The pod does not exist in the runtime any more"
)

// reportedStatus returns the status of a pod of a runtime that reports objects: that of
// the object, with what only the agent knows. A terminal phase is never left, whatever
// the runtime reports.
func (g *generator) reportedStatus() corev1.PodStatus {
	st := g.baseStatus()
	g.reportedPhase(&st)
	g.terminal = podspec.IsTerminalPhase(st.Phase)
	st.ObservedGeneration = g.pod.Generation
	st.NominatedNodeName = g.pod.Status.NominatedNodeName
	st.ResourceClaimStatuses = g.pod.Status.ResourceClaimStatuses
	st.ExtendedResourceClaimStatus = g.pod.Status.ExtendedResourceClaimStatus
	st.QOSClass = qosClass(g.pod, g.previous)
	if st.StartTime == nil {
		st.StartTime = g.startTime()
	}
	g.reportedAddresses(&st)
	g.reportedConditions(&st)
	return st
}

// baseStatus returns a copy of the reported status or, for a pod that the runtime does not
// have, of the previous one. Containers that ran are lost then.
func (g *generator) baseStatus() corev1.PodStatus {
	if o := g.report.Observed.Object; o != nil {
		return *o.Status.DeepCopy()
	}
	st := *g.previous.DeepCopy()
	if !podspec.IsTerminalPhase(st.Phase) {
		st.Reason, st.Message = "", ""
	}
	if g.observed() {
		for c := range podspec.ContainerStatuses(&st) {
			g.setLost(c)
		}
	}
	return st
}

// setLost sets the state of a container that ran and is not in the runtime any more.
func (g *generator) setLost(c *corev1.ContainerStatus) {
	if c.State.Running == nil {
		return
	}
	started := false
	c.Ready, c.Started = false, &started
	c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: exitCodeUnknown, Reason: reasonUnknown, Message: messagePodLost,
		StartedAt: c.State.Running.StartedAt, FinishedAt: g.now, ContainerID: c.ContainerID,
	}}
}

// isLost reports whether the runtime does not have the pod although it ran.
func (g *generator) isLost() bool {
	return g.observed() && g.report.Observed.Object == nil && (g.previous.Phase == corev1.PodRunning || g.previous.Phase == corev1.PodUnknown)
}

// reportedPhase sets the phase with its reason and message.
func (g *generator) reportedPhase(st *corev1.PodStatus) {
	if podspec.IsTerminalPhase(g.previous.Phase) {
		st.Phase, st.Reason, st.Message = g.previous.Phase, g.previous.Reason, g.previous.Message
		return
	}
	final := g.final()
	switch t := g.report.Termination; {
	case final && t != nil && t.Reason != "":
		st.Phase, st.Reason, st.Message = corev1.PodFailed, t.Reason, t.Message
	case podspec.IsTerminalPhase(st.Phase):
	case final:
		st.Phase = Phase(g.pod, *st, true)
	case g.report.Termination != nil:
	case g.isLost() && g.pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
		st.Phase, st.Reason, st.Message = corev1.PodFailed, reasonPodLost, messagePodLost
	case st.Phase == "", g.isLost():
		st.Phase = corev1.PodPending
	}
	if podspec.IsTerminalPhase(st.Phase) {
		return
	}
	if f, failed := g.report.Failures[""]; failed && g.report.Observed.Object == nil {
		st.Reason, st.Message = f.Reason, f.Message
	}
	if b := g.report.Blocked; b != nil {
		st.Phase, st.Reason, st.Message = corev1.PodPending, b.Reason, b.Message
	}
}

// reportedAddresses completes the addresses: the fields for one and for several agree, and
// the host is this node unless the runtime reports another.
func (g *generator) reportedAddresses(st *corev1.PodStatus) {
	switch {
	case len(st.PodIPs) > 0:
		st.PodIP = st.PodIPs[0].IP
	case st.PodIP != "":
		st.PodIPs = []corev1.PodIP{{IP: st.PodIP}}
	}
	switch {
	case len(st.HostIPs) > 0:
		st.HostIP = st.HostIPs[0].IP
	case st.HostIP != "":
		st.HostIPs = []corev1.HostIP{{IP: st.HostIP}}
	default:
		g.hostAddresses(st)
	}
}

// reportedConditions keeps the conditions of the runtime, and adds those of the agent and of
// other components that it does not report.
func (g *generator) reportedConditions(st *corev1.PodStatus) {
	if g.isLost() {
		for i := range st.Conditions {
			if c := &st.Conditions[i]; c.Type == corev1.PodReady || c.Type == corev1.ContainersReady {
				c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionFalse, reasonPodLost, messagePodLost, metav1.Time{}
			}
		}
	}
	if c := condition(st.Conditions, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue && len(g.pod.Spec.ReadinessGates) > 0 {
		if gated := g.ready(*c); gated.Status != corev1.ConditionTrue {
			*c = gated
		}
	}
	if condition(st.Conditions, corev1.PodScheduled) == nil {
		st.Conditions = append(st.Conditions, conditionStatus(corev1.PodScheduled, true))
	}
	if c, ok := g.disruption(); ok && condition(st.Conditions, c.Type) == nil {
		st.Conditions = append(st.Conditions, c)
	}
	for i := range st.Conditions {
		if st.Conditions[i].LastTransitionTime.IsZero() {
			g.date(&st.Conditions[i])
		}
	}
	for i := range g.pod.Status.Conditions {
		c := &g.pod.Status.Conditions[i]
		switch have := condition(st.Conditions, c.Type); {
		case podspec.IsNodeCondition(c.Type):
		case have == nil:
			st.Conditions = append(st.Conditions, *c)
		case g.report.Observed.Object == nil: // have is that of the previous status
			*have = *c
		}
	}
}
