package kubeapi

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

func podTable() table {
	return table{columns("Name", "Ready", "Status", "Restarts", "Age", "|", "IP", "Node", "Nominated Node", "Readiness Gates"), func(o object, now time.Time) []any {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return nil
		}
		s := podspec.Summarize(pod)
		ip := pod.Status.PodIP
		if len(pod.Status.PodIPs) > 0 {
			ip = pod.Status.PodIPs[0].IP
		}
		return []any{
			pod.Name, fmt.Sprintf("%d/%d", s.Ready, s.Containers), s.Status, s.RestartText(now), age(pod.CreationTimestamp, now),
			orNone(ip), orNone(pod.Spec.NodeName), orNone(pod.Status.NominatedNodeName), readinessGates(pod),
		}
	}}
}

func readinessGates(pod *corev1.Pod) string {
	if len(pod.Spec.ReadinessGates) == 0 {
		return none
	}
	n := 0
	for _, gate := range pod.Spec.ReadinessGates {
		if podspec.HasCondition(pod, gate.ConditionType) {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(pod.Spec.ReadinessGates))
}
