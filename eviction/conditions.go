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

// updateConditions takes up the conditions that hold now and says so if they changed.
func (m *Manager) updateConditions(now time.Time) {
	held := m.state.conditions(now)
	m.mu.Lock()
	before := m.conditions
	m.conditions = nodeConditions(before, held, m.blocked, now)
	changed := !slices.EqualFunc(before, m.conditions, func(a, b corev1.NodeCondition) bool {
		return a.Status == b.Status && a.Message == b.Message
	})
	after := slices.Clone(m.conditions)
	m.mu.Unlock()
	if !changed {
		return
	}
	m.cfg.Logger.Info("conditions of the node changed", slog.Any("held", held))
	if m.cfg.Hooks.ConditionsChanged != nil {
		m.cfg.Hooks.ConditionsChanged(after)
	}
}

// block notes why nobody goes for a threshold, and says so when that is new.
func (m *Manager) block(blocked map[corev1.NodeConditionType]string, t metThreshold, why string) {
	if kind := conditionOf(t.Signal); blocked[kind] == "" {
		blocked[kind] = why
	}
	m.warn(t.Threshold, why, "EvictionBlocked",
		fmt.Sprintf("No pod is evicted for %s: %s", t, why), slog.String("available", t.observation.String()))
}

// settle takes up why nobody goes, for each condition; with nil, nothing is due.
func (m *Manager) settle(blocked map[corev1.NodeConditionType]string) {
	if len(blocked) == 0 {
		maps.DeleteFunc(m.warned, func(_, why string) bool { return why != tooLarge })
	}
	if maps.Equal(m.blocked, blocked) {
		return
	}
	m.blocked = blocked
	m.updateConditions(time.Now())
}

// tooLarge is why a threshold is not held to.
const tooLarge = "it is not less than all that there is"

// warnImpossible says which thresholds are not held to, once.
func (m *Manager) warnImpossible(seen map[Signal]Observation) {
	for _, t := range m.state.thresholds {
		o, ok := seen[t.Signal]
		switch {
		case !ok:
		case t.impossible(o):
			m.warn(t, tooLarge, "EvictionThresholdTooLarge",
				fmt.Sprintf("The threshold %s is not held to: %s", t, tooLarge), slog.Uint64("capacity", o.Capacity))
		case m.warned[t.String()] == tooLarge:
			delete(m.warned, t.String())
		}
	}
}

// warn logs something about a threshold and tells it as an event of the node,
// unless it was the last thing told about it.
func (m *Manager) warn(t Threshold, why, reason, message string, attr slog.Attr) {
	if m.warned[t.String()] == why {
		return
	}
	m.warned[t.String()] = why
	m.cfg.Logger.Warn("no pod is evicted for a threshold", slog.String("threshold", t.String()), slog.String("reason", why), attr)
	m.nodeEvent(reason, message)
}

// nodeEvent records an event of the node.
func (m *Manager) nodeEvent(reason, message string) {
	if m.cfg.Recorder == nil || m.cfg.NodeName == "" {
		return
	}
	m.cfg.Recorder.Record(podspec.NewNodeEvent(m.cfg.NodeName, corev1.EventTypeWarning, reason, message, time.Now()))
}

// nodeConditions returns the conditions at now; transition times of those whose
// status did not change are kept. blocked says why nobody is evicted.
func nodeConditions(
	before []corev1.NodeCondition, held []corev1.NodeConditionType, blocked map[corev1.NodeConditionType]string, now time.Time,
) []corev1.NodeCondition {
	out := make([]corev1.NodeCondition, 0, 3)
	for _, t := range conditionTypes() {
		c := conditionFor(t, slices.Contains(held, t))
		if why := blocked[t]; why != "" && c.Status == corev1.ConditionTrue {
			c.Message += ": " + why
		}
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

// conditionFor gives a condition the reason and message that tools look for.
func conditionFor(t corev1.NodeConditionType, yes bool) corev1.NodeCondition {
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
