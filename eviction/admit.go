package eviction

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Admit decides whether a pod may start under the current node conditions. Critical
// pods may always start. Under memory pressure alone all other pods may, except
// best-effort ones that do not tolerate it. Under any other pressure none may. It
// does not block.
func (m *Manager) Admit(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	active := m.activeConditions()
	if len(active) == 0 || podspec.IsCritical(pod) {
		return podspec.Admitted()
	}
	onlyMemory := len(active) == 1 && active[0] == corev1.NodeMemoryPressure
	if onlyMemory && (podspec.QOS(pod) != corev1.PodQOSBestEffort || toleratesMemoryPressure(pod)) {
		return podspec.Admitted()
	}
	return podspec.Rejected(Reason, fmt.Sprintf("The node had condition: %v. ", active))
}

func toleratesMemoryPressure(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		effect := t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule
		key := t.Key == corev1.TaintNodeMemoryPressure || t.Key == "" && t.Operator == corev1.TolerationOpExists
		value := t.Operator == corev1.TolerationOpExists || t.Value == ""
		return effect && key && value
	})
}
