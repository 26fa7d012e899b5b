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
	since := m.state.lastEvictionAt
	for i := range u.Pods {
		pod := byUID[u.Pods[i].UID]
		if pod == nil {
			continue
		}
		if msg, over := exceedsLocalStorageLimit(pod, &u.Pods[i], since); over {
			found = true
			e := runtime.Termination{GracePeriod: hardGrace, Reason: Reason, Message: msg, Evicted: true}
			if _, err := m.evict(ctx, "", []Candidate{{Pod: pod}}, e); err != nil {
				failed[pod.UID] = true
			}
		}
	}
	return found
}

// soon is how long to wait at the most while something is waited for.
const soon = time.Second

// evictOne evicts the pod that should go first for the most urgent threshold for
// which anybody can go. If there is none it returns how long to wait.
func (m *Manager) evictOne(ctx context.Context, due []metThreshold, pods []*corev1.Pod, u *runtime.NodeUsage, failed map[types.UID]bool) (wait time.Duration) {
	wait = m.cfg.MonitoringPeriod
	blocked := make(map[corev1.NodeConditionType]string)
	waits := false // for something on the way, for a disk
	for _, t := range due {
		if m.isOnTheWay(ctx, t, pods, u) {
			waits, wait = true, min(wait, soon)
			continue
		}
		if d := m.heldBack(t, u); d > 0 {
			m.block(blocked, t, noEffect)
			waits, wait = true, min(wait, soon, d)
			continue
		}
		victims, why := m.victims(t, pods, u)
		if why != "" {
			if _, counts := m.count.runs(time.Now()); !counts { // else it is told when all is counted
				m.block(blocked, t, why)
			}
			continue
		}
		m.settle(blocked)
		if err := m.evictFor(ctx, t, victims, u); err != nil {
			failed[victims[0].Pod.UID] = true
		}
		return 0
	}
	m.reclaimed = waits
	m.settle(blocked)
	return wait
}

// isOnTheWay reports whether something is under way that has to come before an
// eviction for a disk: what nobody needs goes, or what pods take up is found out.
func (m *Manager) isOnTheWay(ctx context.Context, t metThreshold, pods []*corev1.Pod, u *runtime.NodeUsage) bool {
	f, _ := infoFor(t.Signal)
	return f.disk && (m.reclaiming(ctx, t) || m.counting(ctx) || m.tooEarly(t.Signal, pods, u))
}

// victims are the pods that can be evicted for a threshold, the first one first.
func (m *Manager) victims(t metThreshold, pods []*corev1.Pod, u *runtime.NodeUsage) (victims []Candidate, why string) {
	if len(pods) == 0 {
		return nil, noPod
	}
	coming := usedBy(t.Signal, u, func(uid types.UID) bool { return m.evicting[uid] })
	return worthwhile(t, Rank(t.Signal, pods, u, m.state.lastEvictionAt), coming)
}

// evictFor evicts the first of the victims for a threshold, and has the effect
// judged by what was measured before.
func (m *Manager) evictFor(ctx context.Context, t metThreshold, victims []Candidate, u *runtime.NodeUsage) error {
	pod := victims[0].Pod
	m.cfg.Logger.Info("evicting pod", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("signal", string(t.Signal)),
		slog.String("threshold", t.String()), slog.String("observed", t.observation.String()),
		slog.Any("ranked", first(victims, 10)))
	before := effect{
		signal: t.Signal, pod: pod.UID, used: victims[0].Usage, left: t.observation.Available,
		others: usedBy(t.Signal, u, func(uid types.UID) bool { return uid != pod.UID }),
	}
	e := runtime.Termination{GracePeriod: m.grace(t, pod), Reason: Reason, Evicted: true, Message: message(t, victims[0], u)}
	gone, err := m.evict(ctx, t.Signal, victims, e)
	if err != nil {
		return err
	}
	with := judgedWith(t.Signal)
	if last := m.effects[with]; last != nil {
		before.vain = last.vain
	}
	if gone { // one that is not gone yet cannot have helped yet
		before.until = time.Now().Add(before.patience())
	}
	m.effects[with] = &before
	return nil
}

// heldBack is how long nobody goes for a threshold because the last eviction has
// not shown an effect yet.
func (m *Manager) heldBack(t metThreshold, u *runtime.NodeUsage) time.Duration {
	e := m.effects[judgedWith(t.Signal)]
	if e == nil || e.until.IsZero() {
		return 0
	}
	if f, _ := infoFor(t.Signal); !f.pressure && e.shows(u) {
		e.until, e.vain = time.Time{}, 0
		return 0
	}
	if d := time.Until(e.until); d > 0 {
		return d
	}
	e.until = time.Time{}
	e.vain++
	m.cfg.Logger.Warn("an eviction did not help", slog.String("threshold", t.String()),
		slog.String("available", t.observation.String()), slog.Int("in a row", e.vain))
	m.nodeEvent("EvictionDidNotHelp", "An eviction for "+t.String()+" did not help")
	return 0
}

// tooEarly reports whether the runtime has yet to say what writable layers take
// up since the last eviction: it measures them only from time to time, and
// without them who should go first cannot be known. It is waited for as long as
// for a pod to be reclaimed.
func (m *Manager) tooEarly(s Signal, pods []*corev1.Pod, u *runtime.NodeUsage) bool {
	return time.Since(m.state.lastEvictionAt) < m.cfg.PodCleanupTimeout && isStale(s, pods, u, m.state.lastEvictionAt)
}

// evict ends the first of ranked and waits for it to be reclaimed: gone. A pod that
// takes longer is on its way and is not chosen again.
func (m *Manager) evict(ctx context.Context, s Signal, ranked []Candidate, e runtime.Termination) (gone bool, err error) {
	pod := ranked[0].Pod
	if m.cfg.Hooks.Evicting != nil {
		m.cfg.Hooks.Evicting(s, ranked, e)
	}
	if m.cfg.Recorder != nil {
		m.cfg.Recorder.Record(podspec.NewEvent(pod, corev1.EventTypeWarning, Reason, e.Message, time.Now()))
	}
	began := time.Now()
	evicted, acted := m.state.lastEvictionAt, m.state.lastActionAt
	m.state.lastEvictionAt, m.state.lastActionAt = began, began
	m.evicting[pod.UID] = true
	wait, cancel := context.WithTimeout(ctx, m.cfg.PodCleanupTimeout)
	defer cancel()
	err = m.cfg.Pods.Evict(wait, pod, e)
	if m.cfg.Hooks.Evicted != nil {
		m.cfg.Hooks.Evicted(s, pod, time.Since(began), err)
	}
	if err == nil || wait.Err() != nil {
		m.state.judgeStallsFrom(time.Now())
		return err == nil, nil
	}
	delete(m.evicting, pod.UID)
	m.state.lastEvictionAt, m.state.lastActionAt = evicted, acted // nothing has changed
	m.cfg.Logger.Warn("pod eviction failed", logattr.Pod(pod), logattr.PodUID(pod.UID), logattr.Err(err))
	return false, err
}

// grace is what the pod has to end by itself.
func (m *Manager) grace(t metThreshold, pod *corev1.Pod) time.Duration {
	own := podspec.GracePeriod(pod)
	switch {
	case t.IsHard(), m.cfg.MaxPodGracePeriod == 0:
		return min(own, hardGrace)
	case m.cfg.MaxPodGracePeriod < 0:
		return own
	default:
		return min(own, m.cfg.MaxPodGracePeriod)
	}
}

// first returns at most n lines on who was ranked how.
func first(ranked []Candidate, n int) []string {
	out := make([]string, 0, n)
	for _, c := range ranked[:min(n, len(ranked))] {
		out = append(out, fmt.Sprintf("%s/%s %s, priority %d, critical %t", c.Pod.Namespace, c.Pod.Name, c.using(), c.Priority, c.Critical))
	}
	return slices.Clip(out)
}
