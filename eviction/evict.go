package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// hardGracePeriod is the maximum grace period of pods evicted for a hard threshold.
const hardGracePeriod = time.Second

// enforceLocal evicts the pods that are above their own storage limits, all at once, and waits
// for their cleanup, at most for PodCleanupTimeout. It reports whether there was one.
func (m *Manager) enforceLocal(ctx context.Context, u *runtime.NodeUsage, pods []*corev1.Pod, failed map[types.UID]bool) bool {
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	lastEvictionAt, lastActionAt := m.state.lastEvictionAt, m.state.lastActionAt
	type ended struct {
		pod    *evictedPod
		result evictionResult
	}
	endedCh := make(chan ended, len(pods))
	begun := 0
	for i := range u.Pods {
		pod := byUID[u.Pods[i].UID]
		if pod == nil {
			continue
		}
		limit, message := exceededLimit(pod, &u.Pods[i], lastEvictionAt)
		if limit == "" {
			continue
		}
		delete(byUID, pod.UID)
		t := runtime.Termination{GracePeriod: hardGracePeriod, Reason: Reason, Message: message, Evicted: true, OverLimit: true}
		e := m.begin(limit, []Candidate{{Pod: pod}}, t, nil)
		m.call(ctx, e, m.cfg.PodCleanupTimeout, t, func(r evictionResult) { endedCh <- ended{e, r} })
		begun++
	}
	evicted := false
	for range begun {
		e := <-endedCh
		if m.finish(e.pod, e.result) != nil {
			failed[e.pod.pod.UID] = true
		} else {
			evicted = true
		}
	}
	if !evicted {
		m.state.lastEvictionAt, m.state.lastActionAt = lastEvictionAt, lastActionAt // nothing has changed
	}
	return begun > 0
}

// retryPeriod is the maximum wait while an eviction is deferred.
const retryPeriod = time.Second

// evictOne evicts the first pod for the most urgent threshold for which a pod can be
// evicted. If there is none it returns how long to wait.
func (m *Manager) evictOne(ctx context.Context, due []metThreshold, all candidates, u *runtime.NodeUsage, failed map[types.UID]bool) (wait time.Duration) {
	wait = m.cfg.MonitoringPeriod
	blocked := make(map[corev1.NodeConditionType]string)
	scope := scopeFor(due, u)
	waits := false // a disk: for reclaim, a measurement or the effect of an eviction
	for _, t := range due {
		pods := all.forThreshold(t.Threshold)
		if d := m.waitsForEvicted(t); d > 0 {
			m.keepBlocked(blocked, t)
			waits, wait = waits || isDisk(t.Signal), min(wait, retryPeriod, d)
			continue
		}
		if m.isDeferred(ctx, t, scope, pods, u) {
			m.keepBlocked(blocked, t)
			waits, wait = true, min(wait, retryPeriod)
			continue
		}
		if d := m.effectDelay(t, u); d > 0 {
			m.block(blocked, t, noEffect)
			waits, wait = waits || isDisk(t.Signal), min(wait, retryPeriod, d)
			continue
		}
		victims, reason := m.victims(t, pods, u)
		if reason != "" {
			if _, counting := m.count.isRunning(time.Now()); counting { // it may change with the count
				m.keepBlocked(blocked, t)
			} else {
				m.block(blocked, t, reason)
			}
			continue
		}
		m.setBlocked(blocked)
		if err := m.evictFor(ctx, t, victims, u); err != nil {
			failed[victims[0].Pod.UID] = true
		}
		return 0
	}
	if !waits {
		m.reclaimed = reclaimNothing
	}
	m.setBlocked(blocked)
	return wait
}

// isDeferred reports whether an eviction for disk has to wait: until unused images and
// containers have been reclaimed, and the disk usage of the pods is known.
func (m *Manager) isDeferred(ctx context.Context, t metThreshold, scope reclaimScope, pods []*corev1.Pod, u *runtime.NodeUsage) bool {
	return isDisk(t.Signal) && (m.needsReclaim(ctx, t, scope) || m.needsDiskUsage(ctx) || m.needsNewerUsage(t.Signal, pods, u))
}

// victims returns the pods that can be evicted for a threshold in order, or why there
// is none.
func (m *Manager) victims(t metThreshold, pods []*corev1.Pod, u *runtime.NodeUsage) (victims []Candidate, reason string) {
	if len(pods) == 0 {
		return nil, noPod
	}
	expected := usedBy(t.Signal, u, func(uid types.UID) bool {
		return m.evicting[uid] != nil && !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.UID == uid })
	})
	return effective(t, Rank(t.Signal, pods, u, m.state.lastEvictionAt), expected)
}

// evictFor evicts the first of the victims for a threshold, and records what its
// effect is judged by.
func (m *Manager) evictFor(ctx context.Context, t metThreshold, victims []Candidate, u *runtime.NodeUsage) error {
	pod := victims[0].Pod
	m.cfg.Logger.Info("evicting pod", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("signal", string(t.Signal)),
		slog.String("threshold", t.String()), slog.String("observed", t.observation.String()),
		slog.Any("ranked", first(victims, 10)))
	e := effect{
		signal: t.Signal, pod: pod.UID, used: victims[0].Usage, available: t.observation.Available,
		others: usedBy(t.Signal, u, func(uid types.UID) bool { return uid != pod.UID }),
	}
	text, annotations := message(t, victims[0], u)
	termination := runtime.Termination{GracePeriod: m.gracePeriod(t, pod), Reason: Reason, Evicted: true, Message: text}
	evicted, err := m.evict(ctx, t, victims, termination, annotations)
	if err != nil {
		return err
	}
	group := effectGroup(t.Signal)
	if last := m.effects[group]; last != nil {
		e.withoutEffect = last.withoutEffect
	}
	m.effects[group] = &e
	evicted.judge(&e)
	return nil
}

// effectDelay returns how long no pod is evicted for a threshold because the last
// eviction has had no effect yet.
func (m *Manager) effectDelay(t metThreshold, u *runtime.NodeUsage) time.Duration {
	e := m.effects[effectGroup(t.Signal)]
	if e == nil || e.deadline.IsZero() {
		return 0
	}
	if f, _ := infoFor(t.Signal); !f.pressure && e.isVisible(u) {
		e.deadline, e.withoutEffect = time.Time{}, 0
		return 0
	}
	if d := time.Until(e.deadline); d > 0 {
		return d
	}
	e.deadline = time.Time{}
	e.withoutEffect++
	m.cfg.Logger.Warn("eviction had no effect", slog.String("threshold", t.String()),
		slog.String("observed", t.observation.String()), slog.Int("consecutive", e.withoutEffect))
	m.nodeEvent("EvictionDidNotHelp", "An eviction for "+t.String()+" had no effect")
	return 0
}

// needsNewerUsage reports whether the runtime has not measured all writable layers
// since the last eviction. It measures them periodically, and pods cannot be ranked
// without them. The wait is limited to PodCleanupTimeout.
func (m *Manager) needsNewerUsage(s Signal, pods []*corev1.Pod, u *runtime.NodeUsage) bool {
	return time.Since(m.state.lastEvictionAt) < m.cfg.PodCleanupTimeout && isStale(s, pods, u, m.state.lastEvictionAt)
}

// evict evicts the first of ranked for a threshold, and waits for its cleanup as terminate does.
// A pod that takes longer is not chosen again. The event has the annotations.
func (m *Manager) evict(ctx context.Context, t metThreshold, ranked []Candidate, termination runtime.Termination, annotations map[string]string) (*evictedPod, error) {
	lastEvictionAt, lastActionAt := m.state.lastEvictionAt, m.state.lastActionAt
	e := m.begin(t.Signal, ranked, termination, annotations)
	if err := m.terminate(ctx, e, t.IsHard(), termination); err != nil {
		m.state.lastEvictionAt, m.state.lastActionAt = lastEvictionAt, lastActionAt // nothing has changed
		return nil, err
	}
	return e, nil
}

// begin records and reports that the first of ranked is evicted.
func (m *Manager) begin(signal Signal, ranked []Candidate, termination runtime.Termination, annotations map[string]string) *evictedPod {
	pod := ranked[0].Pod
	m.supersede(m.evicting[pod.UID])
	if m.cfg.Hooks.Evicting != nil {
		m.cfg.Hooks.Evicting(signal, ranked, termination)
	}
	if m.cfg.Recorder != nil {
		event := podspec.NewEvent(pod, corev1.EventTypeWarning, Reason, termination.Message, time.Now())
		event.Annotations = annotations
		m.cfg.Recorder.Record(event)
	}
	startTime := time.Now()
	m.state.lastEvictionAt, m.state.lastActionAt = startTime, startTime
	killAt := startTime.Add(termination.GracePeriod)
	e := &evictedPod{pod: pod, signal: signal, startTime: startTime, killAt: killAt, deadline: killAt.Add(m.cfg.PodCleanupTimeout)}
	m.evicting[pod.UID] = e
	return e
}

// gracePeriod returns the grace period of a pod that is evicted for a threshold.
func (m *Manager) gracePeriod(t metThreshold, pod *corev1.Pod) time.Duration {
	own := podspec.GracePeriod(pod)
	switch {
	case t.IsHard(), m.cfg.MaxPodGracePeriod == 0:
		return hardGrace(pod)
	case m.cfg.MaxPodGracePeriod < 0:
		return own
	default:
		return min(own, m.cfg.MaxPodGracePeriod)
	}
}

// first describes at most n of the ranked pods.
func first(ranked []Candidate, n int) []string {
	out := make([]string, 0, n)
	for _, c := range ranked[:min(n, len(ranked))] {
		out = append(out, fmt.Sprintf("%s/%s %s, priority %d, critical %t", c.Pod.Namespace, c.Pod.Name, c.usageText(), c.Priority, c.Critical))
	}
	return slices.Clip(out)
}
