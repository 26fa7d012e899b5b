package eviction

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Admit tells whether a pod may start on the node as it is: a critical pod
// always, under memory pressure alone all but best-effort ones (unless they
// tolerate it), under any other pressure none. It does not block.
func (m *Manager) Admit(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	held := m.activeConditions()
	if len(held) == 0 || podspec.IsCritical(pod) {
		return podspec.Admitted()
	}
	onlyMemory := len(held) == 1 && held[0] == corev1.NodeMemoryPressure
	if onlyMemory && (podspec.QOS(pod) != corev1.PodQOSBestEffort || toleratesMemoryPressure(pod)) {
		return podspec.Admitted()
	}
	return podspec.Rejected(Reason, fmt.Sprintf("The node had condition: %v. ", held))
}

func toleratesMemoryPressure(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		effect := t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule
		key := t.Key == corev1.TaintNodeMemoryPressure || t.Key == "" && t.Operator == corev1.TolerationOpExists
		value := t.Operator == corev1.TolerationOpExists || t.Value == ""
		return effect && key && value
	})
}
