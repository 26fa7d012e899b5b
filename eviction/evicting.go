package eviction

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// evictedPod is a pod that was evicted and is still active.
type evictedPod struct {
	pod       *corev1.Pod
	signal    Signal
	startTime time.Time
	killAt    time.Time           // the end of its grace period
	deadline  time.Time           // until when its grace period and its cleanup may take
	resultCh  chan evictionResult // of the call that is still under way; nil: it has returned
	cleanedUp bool
	cancel    func()  // ends the call that is under way
	effect    *effect // nil: not to be judged, or it has its deadline
}

// evictionResult is the result of a call of Pods.Evict.
type evictionResult struct {
	err     error
	expired bool // the context was done
}

// terminate evicts a pod and waits for its cleanup, at most for PodCleanupTimeout. A soft
// threshold may leave it hours to end, and hard ones must act meanwhile: for it terminate waits
// for a moment only, and updateEvicting records the result.
func (m *Manager) terminate(ctx context.Context, e *evictedPod, hard bool, t runtime.Termination) error {
	timeout, giveUp := m.cfg.PodCleanupTimeout, (<-chan time.Time)(nil)
	if !hard {
		timer := time.NewTimer(retryPeriod)
		defer timer.Stop()
		timeout, giveUp = time.Until(e.deadline), timer.C
	}
	resultCh := make(chan evictionResult, 1)
	m.call(ctx, e, timeout, t, func(r evictionResult) {
		resultCh <- r
		if !hard {
			m.RequestMeasurement()
		}
	})
	select {
	case r := <-resultCh:
		return m.finish(e, r)
	case <-giveUp:
		e.resultCh = resultCh
		m.state.resetStalls(time.Now())
		return nil
	}
}

// call has a pod evicted, and calls done with the result, from a goroutine of its own.
func (m *Manager) call(ctx context.Context, e *evictedPod, timeout time.Duration, t runtime.Termination, done func(evictionResult)) {
	ctx, e.cancel = context.WithTimeout(ctx, timeout)
	m.background.Go(func() {
		defer e.cancel()
		err := safe.Call(m.cfg.Logger, "evict pod", func() error { return m.cfg.Pods.Evict(ctx, e.pod, t) })
		if errors.Is(err, runtime.ErrNotFound) {
			err = nil
		}
		done(evictionResult{err: err, expired: ctx.Err() != nil})
	})
}

// errShortened is the result of an eviction whose pod is evicted again, with a shorter grace period.
var errShortened = errors.New("the pod is evicted with a shorter grace period")

// supersede ends the eviction of a pod that is evicted again.
func (m *Manager) supersede(e *evictedPod) {
	if e == nil || e.resultCh == nil {
		return
	}
	e.cancel()
	_ = m.finish(e, evictionResult{err: errShortened, expired: true}) // it terminates
}

// finish records the result of an eviction, and returns its error unless the pod terminates.
func (m *Manager) finish(e *evictedPod, r evictionResult) error {
	now := time.Now()
	e.resultCh = nil
	if m.cfg.Hooks.Evicted != nil {
		m.cfg.Hooks.Evicted(e.signal, e.pod, now.Sub(e.startTime), r.err)
	}
	if r.err != nil && !r.expired {
		delete(m.evicting, e.pod.UID)
		m.cfg.Logger.Warn("pod eviction failed", logattr.Pod(e.pod), logattr.PodUID(e.pod.UID), logattr.Err(r.err))
		return r.err
	}
	m.state.resetStalls(now)
	if e.cleanedUp = r.err == nil; e.cleanedUp {
		m.leftAt = now
	}
	if !errors.Is(r.err, errShortened) {
		e.judge(e.effect)
	}
	return nil
}

// judge sets what the eviction is judged by once the pod is cleaned up, or not waited for any
// longer. Before, it cannot have an effect. One pod that does not leave delays no other one. But
// where several do not, as with a runtime that hangs, evicting yet another pod frees nothing.
func (e *evictedPod) judge(f *effect) {
	e.effect = f
	now := time.Now()
	if f == nil || e.resultCh != nil && now.Before(e.deadline) {
		return
	}
	e.effect, f.deadline = nil, now
	if e.cleanedUp || f.withoutEffect > 0 {
		f.deadline = now.Add(f.timeout())
	}
}

// updateEvicting records evictions that have ended since the last call. It forgets
// evicted pods that are no longer active: one that returns under its UID can be evicted as
// any other.
func (m *Manager) updateEvicting() {
	if len(m.evicting) == 0 {
		return
	}
	active := make(map[types.UID]bool, len(m.evicting))
	for _, pod := range m.cfg.Pods.ActivePods() {
		active[pod.UID] = true
	}
	for uid, e := range m.evicting {
		select {
		case r := <-e.resultCh:
			m.state.lastActionAt = time.Now() // older observations of the node do not count
			_ = m.finish(e, r)                // logged
		default:
			e.judge(e.effect) // a call that ends late
		}
		if active[uid] || e.resultCh != nil {
			continue
		}
		if delete(m.evicting, uid); !e.cleanedUp {
			m.leftAt = time.Now()
		}
	}
}

// isPending reports whether an evicted pod may still take until its usage is free.
func (e *evictedPod) isPending(now time.Time) bool { return !e.cleanedUp && now.Before(e.deadline) }

// waitsForEvicted returns how long a soft threshold waits, at most, for a pod that was evicted
// for the same shortage and terminates. Hard thresholds do not wait.
func (m *Manager) waitsForEvicted(t metThreshold) (wait time.Duration) {
	if t.IsHard() {
		return 0
	}
	now := time.Now()
	for _, e := range m.evicting {
		if e.isPending(now) && effectGroup(e.signal) == effectGroup(t.Signal) {
			wait = max(wait, e.deadline.Sub(now))
		}
	}
	return wait
}

// candidates are the active pods that may be evicted.
type candidates struct {
	running     []*corev1.Pod
	terminating []*corev1.Pod // that a hard threshold ends earlier
}

// forThreshold returns the pods that may be evicted for a threshold. Only a hard one shortens
// the grace period of pods that terminate already.
func (c candidates) forThreshold(t Threshold) []*corev1.Pod {
	if !t.IsHard() {
		return c.running
	}
	return slices.Concat(c.running, c.terminating)
}

// candidates returns the pods that may be evicted. failed are those whose eviction failed in
// this iteration.
func (m *Manager) candidates(failed map[types.UID]bool) (c candidates) {
	now := time.Now()
	for _, pod := range m.cfg.Pods.ActivePods() {
		e := m.evicting[pod.UID]
		switch {
		case failed[pod.UID], !m.cfg.EvictCritical && podspec.IsCritical(pod):
		case e == nil && pod.DeletionTimestamp == nil:
			c.running = append(c.running, pod)
		case graceLeft(pod, e, now) > hardGrace(pod):
			c.terminating = append(c.terminating, pod)
		}
	}
	return c
}

// graceLeft returns how much of its grace period a pod has left that is deleted, or evicted
// (e is not nil), or both. It is pure.
func graceLeft(pod *corev1.Pod, e *evictedPod, now time.Time) time.Duration {
	left := podspec.GracePeriod(pod)
	if pod.DeletionTimestamp != nil { // the end of the grace period, by the clock of the API server
		left = min(left, pod.DeletionTimestamp.Sub(now))
	}
	if e != nil {
		left = min(left, e.killAt.Sub(now))
	}
	return left
}

// hardGrace returns the grace period of a pod that is evicted for a hard threshold.
func hardGrace(pod *corev1.Pod) time.Duration { return min(podspec.GracePeriod(pod), hardGracePeriod) }
