package eviction

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// NodeUsageProvider is an optional interface of a UsageProvider that can measure the
// node without its pods at low cost. NodeUsage is then called as often as a threshold
// could be met, and the pods are measured only when one is met, or to check local
// storage limits.
type NodeUsageProvider interface {
	NodeUsage(ctx context.Context) (runtime.NodeUsage, error)
}

// checkNode measures only the node. If done is true, the next iteration is due after
// wait; otherwise the pods have to be measured as well.
func (m *Manager) checkNode(ctx context.Context) (wait time.Duration, done bool) {
	g, ok := m.cfg.Usage.(NodeUsageProvider)
	if !ok || m.limitsDue() {
		return 0, false
	}
	u, err := m.measureWith(ctx, func(ctx context.Context) (runtime.NodeUsage, error) { return g.NodeUsage(ctx) })
	if err != nil {
		m.cfg.Logger.Warn("measuring node usage failed", logattr.Err(err))
		return m.cfg.MonitoringPeriod, true
	}
	due, next := m.handleUsage(&u)
	m.urgent = slices.ContainsFunc(due, isUrgent)
	return m.until(next, &u), len(due) == 0
}

// isUrgent reports whether pods can use up the rest of a resource before a slow runtime
// answers: memory and process ids, which cgroups count.
func isUrgent(t metThreshold) bool {
	f, _ := infoFor(t.Signal)
	return !f.disk && !f.pressure
}

// urgentTimeout is the context timeout of a measurement of pods for an urgent threshold.
const urgentTimeout = 100 * time.Millisecond

// measureUrgently measures pods without waiting for a slow runtime. ok is false if it has
// the memory of no pod.
func (m *Manager) measureUrgently(ctx context.Context, since time.Time) (u runtime.NodeUsage, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, urgentTimeout)
	defer cancel()
	u, err := m.measureWith(ctx, func(ctx context.Context) (runtime.NodeUsage, error) { return m.cfg.Usage.Usage(ctx, since) })
	return u, err == nil && slices.ContainsFunc(u.Pods, func(p runtime.PodUsage) bool { return !p.Memory.At.IsZero() })
}

// handleUsage updates thresholds, conditions and notifiers with a measurement. It returns
// the thresholds that require action, and when the next one changes by time alone.
func (m *Manager) handleUsage(u *runtime.NodeUsage) (due []metThreshold, next time.Time) {
	now := time.Now()
	observed := observe(u)
	due, next = m.state.update(observed, now)
	for group := range m.effects {
		if !m.state.isActive(group) {
			delete(m.effects, group)
		}
	}
	if len(due) == 0 {
		m.reclaimed = reclaimNothing // the next shortage reclaims before it evicts
		m.setBlocked(nil)
	}
	for _, t := range due {
		if f, _ := infoFor(t.Signal); t.isNew {
			m.nodeEvent("EvictionThresholdMet", fmt.Sprintf("Reclaiming %s, because %s is met: it is %s", f.resource, t.Threshold, t.observation))
		}
	}
	m.warnImpossible(observed)
	m.updateConditions(now)
	m.updateNotifiers(u)
	return due, next
}

// until returns how long to wait for the next measurement: at most MonitoringPeriod,
// and not beyond the end of a grace period or a condition, or the earliest time at
// which a threshold could be met.
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

// limitsDue reports whether the local storage limits of pods have to be checked.
func (m *Manager) limitsDue() bool {
	if time.Since(m.measuredAt) < m.cfg.MonitoringPeriod {
		return false
	}
	if slices.ContainsFunc(m.cfg.Pods.ActivePods(), HasLocalStorageLimit) {
		return true
	}
	m.measuredAt = time.Now() // no pod needs to be measured
	return false
}

// HasLocalStorageLimit reports whether a pod has a limit on local storage, so that its
// files have to be counted.
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
