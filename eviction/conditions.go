package eviction

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Conditions returns the node's conditions MemoryPressure, DiskPressure and
// PIDPressure, in this order. The caller owns them.
func (m *Manager) Conditions() []corev1.NodeCondition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.conditions)
}

// UnderPressure reports whether one of the conditions is true.
func (m *Manager) UnderPressure() bool { return len(m.activeConditions()) > 0 }

// activeConditions returns the types of the conditions that are true.
func (m *Manager) activeConditions() []corev1.NodeConditionType {
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

// updateConditions computes the conditions at now, and logs and reports changes.
func (m *Manager) updateConditions(now time.Time) {
	active := m.state.conditions(now)
	m.mu.Lock()
	previous := m.conditions
	m.conditions = nodeConditions(previous, active, m.blocked, now)
	current := slices.Clone(m.conditions)
	m.mu.Unlock()
	if !slices.EqualFunc(previous, current, func(a, b corev1.NodeCondition) bool { return a.Status == b.Status }) {
		m.cfg.Logger.Info("node conditions changed", slog.Any("conditions", active))
	}
	unchanged := slices.EqualFunc(previous, current, func(a, b corev1.NodeCondition) bool {
		return a.Status == b.Status && a.Message == b.Message
	})
	if !unchanged && m.cfg.Hooks.ConditionsChanged != nil {
		m.cfg.Hooks.ConditionsChanged(current)
	}
}

// block records why no pod is evicted for a threshold, and reports a new reason.
func (m *Manager) block(blocked map[corev1.NodeConditionType]string, t metThreshold, reason string) {
	if kind := conditionOf(t.Signal); blocked[kind] == "" {
		blocked[kind] = reason
	}
	m.warn(t.Threshold, "eviction threshold met but no pod can be evicted", reason, "EvictionBlocked",
		fmt.Sprintf("No pod is evicted for %s: %s", t, reason), slog.String("observed", t.observation.String()))
}

// keepBlocked keeps the last reason while a new decision is prepared, so that a reason that
// stays the same is reported once.
func (m *Manager) keepBlocked(blocked map[corev1.NodeConditionType]string, t metThreshold) {
	if kind := conditionOf(t.Signal); blocked[kind] == "" && m.blocked[kind] != "" {
		blocked[kind] = m.blocked[kind]
	}
}

// setBlocked records why no pod is evicted, by condition. nil means that no threshold
// requires an eviction.
func (m *Manager) setBlocked(blocked map[corev1.NodeConditionType]string) {
	if len(blocked) == 0 {
		maps.DeleteFunc(m.warned, func(_, reason string) bool { return reason != tooLarge })
	}
	if maps.Equal(m.blocked, blocked) {
		return
	}
	m.blocked = blocked
	m.updateConditions(time.Now())
}

// tooLarge is the reason for which a threshold is ignored.
const tooLarge = "it is not less than the capacity"

// warnImpossible reports each threshold that is ignored, once.
func (m *Manager) warnImpossible(observed map[Signal]observation) {
	for _, t := range m.state.thresholds {
		o, ok := observed[t.Signal]
		switch {
		case !ok:
		case t.isImpossible(o):
			m.warn(t, "eviction threshold ignored", tooLarge, "EvictionThresholdTooLarge",
				fmt.Sprintf("The threshold %s is ignored: %s", t, tooLarge), slog.Uint64("capacity", o.Capacity))
		case m.warned[t.String()] == tooLarge:
			delete(m.warned, t.String())
		}
	}
}

// warn logs a problem with a threshold and records it as an event of the node, unless
// its last problem had the same reason.
func (m *Manager) warn(t Threshold, problem, reason, eventReason, message string, attr slog.Attr) {
	if m.warned[t.String()] == reason {
		return
	}
	m.warned[t.String()] = reason
	m.cfg.Logger.Warn(problem, //nolint:sloglint // both callers give a constant
		slog.String("threshold", t.String()), slog.String("reason", reason), attr)
	m.nodeEvent(eventReason, message)
}

// nodeEvent records an event of the node.
func (m *Manager) nodeEvent(reason, message string) {
	if m.cfg.Recorder == nil || m.cfg.NodeName == "" {
		return
	}
	m.cfg.Recorder.Record(podspec.NewNodeEvent(m.cfg.NodeName, corev1.EventTypeWarning, reason, message, time.Now()))
}

// nodeConditions returns the conditions at now. A condition whose status did not
// change keeps its transition time. blocked is why no pod is evicted.
func nodeConditions(
	previous []corev1.NodeCondition, active []corev1.NodeConditionType, blocked map[corev1.NodeConditionType]string, now time.Time,
) []corev1.NodeCondition {
	out := make([]corev1.NodeCondition, 0, 3)
	for _, t := range conditionTypes() {
		c := conditionFor(t, slices.Contains(active, t))
		if reason := blocked[t]; reason != "" && c.Status == corev1.ConditionTrue {
			c.Message += ": " + reason
		}
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		for i := range previous {
			if previous[i].Type == t && previous[i].Status == c.Status && !previous[i].LastTransitionTime.IsZero() {
				c.LastTransitionTime = previous[i].LastTransitionTime
			}
		}
		out = append(out, c)
	}
	return out
}

// conditionFor returns a condition with the reason and message of the kubelet, which
// tools match.
func conditionFor(t corev1.NodeConditionType, active bool) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse}
	if active {
		c.Status = corev1.ConditionTrue
	}
	switch {
	case t == corev1.NodeMemoryPressure && active:
		c.Reason, c.Message = "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"
	case t == corev1.NodeMemoryPressure:
		c.Reason, c.Message = "KubeletHasSufficientMemory", "kubelet has sufficient memory available"
	case t == corev1.NodeDiskPressure && active:
		c.Reason, c.Message = "KubeletHasDiskPressure", "kubelet has disk pressure"
	case t == corev1.NodeDiskPressure:
		c.Reason, c.Message = "KubeletHasNoDiskPressure", "kubelet has no disk pressure"
	case active:
		c.Reason, c.Message = "KubeletHasInsufficientPID", "kubelet has insufficient PID available"
	default:
		c.Reason, c.Message = "KubeletHasSufficientPID", "kubelet has sufficient PID available"
	}
	return c
}
