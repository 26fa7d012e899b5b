package kube

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// recordTransitions records the kubelet's events about what has changed from current to
// desired, which the API server has accepted, and about the Node being cordoned or not.
func (n *Node) recordTransitions(current, desired *corev1.Node, now time.Time) {
	if boot := current.Status.NodeInfo.BootID; boot != "" && boot != desired.Status.NodeInfo.BootID && desired.Status.NodeInfo.BootID != "" {
		n.record(corev1.EventTypeWarning, "Rebooted", "Node "+desired.Name+" has been rebooted, boot id: "+desired.Status.NodeInfo.BootID, now)
	}
	if cordoned := desired.Spec.Unschedulable; cordoned != n.cordoned {
		n.cordoned = cordoned
		n.recordStatus(choose(cordoned, "NodeNotSchedulable", "NodeSchedulable"), now)
	}
	for _, c := range desired.Status.Conditions {
		i := slices.IndexFunc(current.Status.Conditions, func(o corev1.NodeCondition) bool { return o.Type == c.Type })
		if i < 0 || current.Status.Conditions[i].Status == c.Status {
			continue
		}
		if reason := eventReason(c.Type, c.Status == corev1.ConditionTrue); reason != "" {
			n.recordStatus(reason, now)
		}
	}
}

// eventReason returns the kubelet's reason for a condition that became true or not.
func eventReason(kind corev1.NodeConditionType, isTrue bool) string {
	switch kind { //nolint:exhaustive // those that the kubelet sends events of
	case corev1.NodeReady:
		return choose(isTrue, "NodeReady", "NodeNotReady")
	case corev1.NodeMemoryPressure:
		return choose(isTrue, "NodeHasInsufficientMemory", "NodeHasSufficientMemory")
	case corev1.NodeDiskPressure:
		return choose(isTrue, "NodeHasDiskPressure", "NodeHasNoDiskPressure")
	case corev1.NodePIDPressure:
		return choose(isTrue, "NodeHasInsufficientPID", "NodeHasSufficientPID")
	}
	return ""
}

func choose(isTrue bool, yes, no string) string {
	if isTrue {
		return yes
	}
	return no
}

// recordStatus records an event about the status of the node.
func (n *Node) recordStatus(reason string, now time.Time) {
	n.record(corev1.EventTypeNormal, reason, "Node "+n.kube.cfg.NodeName+" status is now: "+reason, now)
}

func (n *Node) record(eventType, reason, message string, now time.Time) {
	if n.cfg.Recorder == nil {
		return
	}
	event := podspec.NewNodeEvent(n.kube.cfg.NodeName, eventType, reason, message, now)
	safe.Do(n.log, "record event", func() { n.cfg.Recorder.Record(event) })
}
