package eviction

import (
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions returns the node's conditions MemoryPressure, DiskPressure and
// PIDPressure, in this order. The caller owns them.
func (m *Manager) Conditions() []corev1.NodeCondition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.conditions)
}

// held returns the types of the conditions that are true.
func (m *Manager) held() []corev1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.NodeConditionType
	for i := range m.conditions {
		if m.conditions[i].Status == corev1.ConditionTrue {
			out = append(out, m.conditions[i].Type)
		}
	}
	return out
}

// tell takes up the conditions that hold now and says so if they changed.
func (m *Manager) tell(now time.Time) {
	held := m.state.conditions(now)
	m.mu.Lock()
	before := m.conditions
	m.conditions = nodeConditions(before, held, now)
	changed := !slices.EqualFunc(before, m.conditions, func(a, b corev1.NodeCondition) bool { return a.Status == b.Status })
	after := slices.Clone(m.conditions)
	m.mu.Unlock()
	if !changed {
		return
	}
	m.cfg.Logger.Info("conditions of the node changed", slog.Any("held", held))
	if m.cfg.Hooks.Conditions != nil {
		m.cfg.Hooks.Conditions(after)
	}
}

// nodeConditions returns the conditions at now; transition times of those that
// did not change are kept.
func nodeConditions(before []corev1.NodeCondition, held []corev1.NodeConditionType, now time.Time) []corev1.NodeCondition {
	out := make([]corev1.NodeCondition, 0, 3)
	for _, t := range conditionTypes() {
		c := wording(t, slices.Contains(held, t))
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		for i := range before {
			if before[i].Type == t && before[i].Status == c.Status && !before[i].LastTransitionTime.IsZero() {
				c.LastTransitionTime = before[i].LastTransitionTime
			}
		}
		out = append(out, c)
	}
	return out
}

// wording gives a condition the reason and message that tools look for.
func wording(t corev1.NodeConditionType, yes bool) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse}
	if yes {
		c.Status = corev1.ConditionTrue
	}
	switch {
	case t == corev1.NodeMemoryPressure && yes:
		c.Reason, c.Message = "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"
	case t == corev1.NodeMemoryPressure:
		c.Reason, c.Message = "KubeletHasSufficientMemory", "kubelet has sufficient memory available"
	case t == corev1.NodeDiskPressure && yes:
		c.Reason, c.Message = "KubeletHasDiskPressure", "kubelet has disk pressure"
	case t == corev1.NodeDiskPressure:
		c.Reason, c.Message = "KubeletHasNoDiskPressure", "kubelet has no disk pressure"
	case yes:
		c.Reason, c.Message = "KubeletHasInsufficientPID", "kubelet has insufficient PID available"
	default:
		c.Reason, c.Message = "KubeletHasSufficientPID", "kubelet has sufficient PID available"
	}
	return c
}
