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

// Glancer is a Node that can tell its own figures, without its pods', at next to
// no cost. It is looked at as often as a threshold could be crossed meanwhile, and
// its pods are measured only when one is, or when local storage limits are due.
type Glancer interface {
	Glance(ctx context.Context) (runtime.NodeUsage, error)
}

// glance looks at the node alone. It is calm when there is nothing to do, for so
// long; otherwise all is to be measured.
func (m *Manager) glance(ctx context.Context) (wait time.Duration, calm bool) {
	g, ok := m.cfg.Node.(Glancer)
	if !ok || m.limitsDue() {
		return 0, false
	}
	u, err := m.measureBy(ctx, func(ctx context.Context) (runtime.NodeUsage, error) { return g.Glance(ctx) })
	if err != nil {
		m.cfg.Logger.Warn("the node could not be looked at", slog.Any("error", err))
		return m.cfg.Poll, true
	}
	due, next := m.took(&u)
	return m.until(next, &u), len(due) == 0
}

// took takes up a measurement of the node.
func (m *Manager) took(u *runtime.NodeUsage) (due []met, next time.Time) {
	now := time.Now()
	seen := observe(u)
	due, next = m.state.look(seen, now)
	for with := range m.effects {
		if !m.state.acts(with) {
			delete(m.effects, with)
		}
	}
	m.warnImpossible(seen)
	m.tell(now)
	m.arm(u)
	return due, next
}

// until is how long to wait for the next look: not beyond Poll, nor the end of a
// grace period or a condition, nor when a threshold could be crossed.
func (m *Manager) until(next time.Time, u *runtime.NodeUsage) time.Duration {
	wait := m.cfg.Poll
	if _, ok := m.cfg.Node.(Glancer); ok {
		wait = pace(u, m.state.thresholds, m.told, wait)
	}
	if !next.IsZero() {
		wait = min(wait, time.Until(next))
	}
	return max(wait, 0)
}

// limitsDue reports whether it is time to hold pods to their local storage limits.
func (m *Manager) limitsDue() bool {
	if time.Since(m.measured) < m.cfg.Poll {
		return false
	}
	if slices.ContainsFunc(m.cfg.Pods.Active(), HasLocalLimit) {
		return true
	}
	m.measured = time.Now() // of what there was to measure
	return false
}

// HasLocalLimit reports whether a pod is bounded in the local storage that it may
// take up, so that its files have to be counted.
func HasLocalLimit(pod *corev1.Pod) bool {
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
