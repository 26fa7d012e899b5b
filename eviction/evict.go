package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// hardGrace is the most that a pod gets to end when the node is in danger.
const hardGrace = time.Second

// enforceLocal evicts the pods that are above their own storage limits, and
// reports whether there was one.
func (m *Manager) enforceLocal(ctx context.Context, u *runtime.NodeUsage, pods []*corev1.Pod, failed map[types.UID]bool) bool {
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	found := false
	since := m.state.evicted
	for i := range u.Pods {
		pod := byUID[u.Pods[i].UID]
		if pod == nil {
			continue
		}
		if msg, over := overLocalLimit(pod, &u.Pods[i], since); over {
			found = true
			e := runtime.Ending{Grace: hardGrace, Reason: Reason, Message: msg, Evicted: true}
			if err := m.evict(ctx, "", []Candidate{{Pod: pod}}, e); err != nil {
				failed[pod.UID] = true
			}
		}
	}
	return found
}

// evictOne evicts the pod that should go first for the most urgent threshold for
// which anybody can go. If there is none it returns how long to wait.
func (m *Manager) evictOne(ctx context.Context, due []met, pods []*corev1.Pod, u *runtime.NodeUsage, failed map[types.UID]bool) (wait time.Duration) {
	wait = m.cfg.Poll
	for _, t := range due {
		if m.tooEarly(t.Signal, pods, u) {
			m.early, wait = true, min(wait, time.Second)
			continue
		}
		ranked := Rank(t.Signal, pods, u, m.state.evicted)
		if len(ranked) == 0 {
			m.cfg.Logger.Warn("a threshold is crossed and there is no pod to evict",
				slog.String("threshold", t.String()), slog.String("available", t.seen.String()))
			continue
		}
		pod := ranked[0].Pod
		e := runtime.Ending{
			Grace: m.grace(t, pod), Reason: Reason, Evicted: true, Message: message(t, pod, u),
		}
		m.cfg.Logger.Warn("evicting a pod",
			slog.String("pod", pod.Name), slog.String("namespace", pod.Namespace), slog.String("uid", string(pod.UID)),
			slog.String("threshold", t.String()), slog.String("available", t.seen.String()),
			slog.Any("ranked", first(ranked, 10)))
		if err := m.evict(ctx, t.Signal, ranked, e); err != nil {
			failed[pod.UID] = true
		}
		return 0
	}
	return wait
}

// tooEarly reports whether the runtime has yet to say what writable layers take
// up since the last eviction: it measures them only from time to time, and
// without them who should go first cannot be known. It is waited for as long as
// for a pod to be reclaimed.
func (m *Manager) tooEarly(s Signal, pods []*corev1.Pod, u *runtime.NodeUsage) bool {
	return time.Since(m.state.evicted) < m.cfg.ReclaimWait && outdated(s, pods, u, m.state.evicted)
}

// evict ends the first of ranked and waits for it to be reclaimed. A pod that
// takes longer is on its way and is not chosen again.
func (m *Manager) evict(ctx context.Context, s Signal, ranked []Candidate, e runtime.Ending) error {
	pod := ranked[0].Pod
	if m.cfg.Hooks.Evicting != nil {
		m.cfg.Hooks.Evicting(s, ranked, e)
	}
	if m.cfg.Recorder != nil {
		m.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, Reason, e.Message, time.Now()))
	}
	began := time.Now()
	evicted, acted := m.state.evicted, m.state.acted
	m.state.evicted, m.state.acted = began, began
	m.evicting[pod.UID] = true
	wait, cancel := context.WithTimeout(ctx, m.cfg.ReclaimWait)
	defer cancel()
	err := m.cfg.Pods.Evict(wait, pod, e)
	if m.cfg.Hooks.Evicted != nil {
		m.cfg.Hooks.Evicted(s, pod, time.Since(began), err)
	}
	if err == nil || wait.Err() != nil {
		return nil
	}
	delete(m.evicting, pod.UID)
	m.state.evicted, m.state.acted = evicted, acted // nothing has changed
	m.cfg.Logger.Warn("pod could not be evicted",
		slog.String("pod", pod.Name), slog.String("namespace", pod.Namespace),
		slog.String("uid", string(pod.UID)), slog.Any("error", err))
	return err
}

// grace is what the pod has to end by itself.
func (m *Manager) grace(t met, pod *corev1.Pod) time.Duration {
	own := podspec.GracePeriod(pod)
	switch {
	case t.Hard(), m.cfg.MaxPodGrace == 0:
		return min(own, hardGrace)
	case m.cfg.MaxPodGrace < 0:
		return own
	default:
		return min(own, m.cfg.MaxPodGrace)
	}
}

// first returns at most n lines on who was ranked how.
func first(ranked []Candidate, n int) []string {
	out := make([]string, 0, n)
	for _, c := range ranked[:min(n, len(ranked))] {
		out = append(out, fmt.Sprintf("%s/%s used %d of %d requested, priority %d, critical %t",
			c.Pod.Namespace, c.Pod.Name, c.Usage, c.Request, c.Priority, c.Critical))
	}
	return slices.Clip(out)
}
