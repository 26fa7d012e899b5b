package podworkers

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// schedule records the pod's requeueAt and sets the timer. The caller holds mu.
func (w *Workers) schedule(uid types.UID) {
	var at time.Time
	if s := w.tracker.pods[uid]; s != nil {
		at = s.requeueAt
	}
	w.requeues.set(uid, at)
	w.setTimer()
}

// setTimer sets the timer to the first requeue time. The caller holds mu.
func (w *Workers) setTimer() {
	next := w.requeues.next()
	if w.paused || w.stopped {
		next = time.Time{}
	}
	if next.Equal(w.timerAt) {
		return
	}
	w.timerAt = next
	switch {
	case w.timer == nil:
		w.timer = time.AfterFunc(time.Until(next), w.requeueDue)
	case next.IsZero():
		w.timer.Stop()
	default:
		w.timer.Reset(time.Until(next))
	}
}

// requeueDue requeues the pods that are due.
func (w *Workers) requeueDue() {
	w.mu.Lock()
	w.timerAt = time.Time{}
	if !w.paused && !w.stopped {
		now := time.Now()
		for _, uid := range w.requeues.take(now) {
			w.apply(w.tracker.requeueDue(uid, now))
		}
	}
	w.setTimer()
	w.mu.Unlock()
	w.deliver()
}

// PauseRequeues stops or resumes the resync and the retries of all pods. Pods that
// became due meanwhile are requeued at once when they resume. It has no effect
// after Drain was called. It does not block.
func (w *Workers) PauseRequeues(paused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if paused == w.paused || w.draining {
		return
	}
	w.paused, w.resumedAt = paused, time.Now()
	w.setTimer()
}

// OverduePods returns how many pods have been due for longer than threshold and were
// not requeued. Time during which requeues are paused does not count.
func (w *Workers) OverduePods(threshold time.Duration) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.paused || now.Sub(w.resumedAt) <= threshold {
		return 0
	}
	return w.requeues.overdue(now.Add(-threshold))
}
