package eviction

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// NodeUsageProvider is a Node that can tell its own figures, without its pods', at next to
// no cost. It is looked at as often as a threshold could be crossed meanwhile, and
// its pods are measured only when one is, or when local storage limits are due.
type NodeUsageProvider interface {
	NodeUsage(ctx context.Context) (runtime.NodeUsage, error)
}

// checkNode looks at the node alone. It is calm when there is nothing to do, for so
// long; otherwise all is to be measured.
func (m *Manager) checkNode(ctx context.Context) (wait time.Duration, calm bool) {
	g, ok := m.cfg.Usage.(NodeUsageProvider)
	if !ok || m.limitsDue() {
		return 0, false
	}
	u, err := m.measureBy(ctx, func(ctx context.Context) (runtime.NodeUsage, error) { return g.NodeUsage(ctx) })
	if err != nil {
		m.cfg.Logger.Warn("the node could not be looked at", slog.Any("error", err))
		return m.cfg.MonitoringPeriod, true
	}
	due, next := m.handleUsage(&u)
	return m.until(next, &u), len(due) == 0
}

// handleUsage takes up a measurement of the node.
func (m *Manager) handleUsage(u *runtime.NodeUsage) (due []metThreshold, next time.Time) {
	now := time.Now()
	seen := observe(u)
	due, next = m.state.update(seen, now)
	for with := range m.effects {
		if !m.state.acts(with) {
			delete(m.effects, with)
		}
	}
	m.warnImpossible(seen)
	m.updateConditions(now)
	m.updateNotifiers(u)
	return due, next
}

// until is how long to wait for the next look: not beyond Poll, nor the end of a
// grace period or a condition, nor when a threshold could be crossed.
func (m *Manager) until(next time.Time, u *runtime.NodeUsage) time.Duration {
	wait := m.cfg.MonitoringPeriod
	if _, ok := m.cfg.Usage.(NodeUsageProvider); ok {
		wait = nextPoll(u, m.state.thresholds, m.kernelSignals, wait)
	}
	if !next.IsZero() {
		wait = min(wait, time.Until(next))
	}
	return max(wait, 0)
}

// limitsDue reports whether it is time to hold pods to their local storage limits.
func (m *Manager) limitsDue() bool {
	if time.Since(m.measured) < m.cfg.MonitoringPeriod {
		return false
	}
	if slices.ContainsFunc(m.cfg.Pods.ActivePods(), HasLocalStorageLimit) {
		return true
	}
	m.measured = time.Now() // of what there was to measure
	return false
}

// HasLocalStorageLimit reports whether a pod is bounded in the local storage that it may
// take up, so that its files have to be counted.
func HasLocalStorageLimit(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].EmptyDir; e != nil && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			return true
		}
	}
	for c := range podspec.Containers(pod) {
		if q, ok := c.Resources.Limits[corev1.ResourceEphemeralStorage]; ok && q.Sign() > 0 {
			return true
		}
	}
	return false
}
