package kube

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// recordTransitions records the kubelet's events about what has changed from current to
// desired, which the API server has accepted.
func (n *Node) recordTransitions(current, desired *corev1.Node, now time.Time) {
	if boot := current.Status.NodeInfo.BootID; boot != "" && boot != desired.Status.NodeInfo.BootID && desired.Status.NodeInfo.BootID != "" {
		n.record(desired, corev1.EventTypeWarning, "Rebooted", "Node "+desired.Name+" has been rebooted, boot id: "+desired.Status.NodeInfo.BootID, now)
	}
	for _, c := range desired.Status.Conditions {
		i := slices.IndexFunc(current.Status.Conditions, func(o corev1.NodeCondition) bool { return o.Type == c.Type })
		if i < 0 || current.Status.Conditions[i].Status == c.Status {
			continue
		}
		if reason := eventReason(c.Type, c.Status == corev1.ConditionTrue); reason != "" {
			n.record(desired, corev1.EventTypeNormal, reason, "Node "+desired.Name+" status is now: "+reason, now)
		}
	}
}

// eventReason returns the kubelet's reason for a condition that became true or not.
func eventReason(kind corev1.NodeConditionType, isTrue bool) string {
	choose := func(yes, no string) string {
		if isTrue {
			return yes
		}
		return no
	}
	switch kind { //nolint:exhaustive // those that the kubelet sends events of
	case corev1.NodeReady:
		return choose("NodeReady", "NodeNotReady")
	case corev1.NodeMemoryPressure:
		return choose("NodeHasInsufficientMemory", "NodeHasSufficientMemory")
	case corev1.NodeDiskPressure:
		return choose("NodeHasDiskPressure", "NodeHasNoDiskPressure")
	case corev1.NodePIDPressure:
		return choose("NodeHasInsufficientPID", "NodeHasSufficientPID")
	}
	return ""
}

func (n *Node) record(of *corev1.Node, eventType, reason, message string, now time.Time) {
	if n.cfg.Recorder == nil {
		return
	}
	event := podspec.NewNodeEvent(of.Name, eventType, reason, message, now)
	safe.Do(n.log, "record event", func() { n.cfg.Recorder.Record(event) })
}
