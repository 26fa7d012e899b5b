package podworkers

import (
	"sync/atomic"
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
		var unchanged []types.UID
		for _, uid := range w.requeues.take(now) {
			w.tracker.requeueDue(uid, now) // the requeue time that it ends was taken from the queue above
			if !w.claim(uid) {
				continue
			}
			if w.tracker.pods[uid].unchanged {
				unchanged = append(unchanged, uid)
			} else {
				w.wg.Go(func() { w.work(uid) })
			}
		}
		w.workTogether(unchanged)
	}
	w.setTimer()
	w.mu.Unlock()
	w.deliver()
}

const (
	// handOffAfter is how long resyncs may take that share a goroutine.
	handOffAfter = 25 * time.Millisecond
	// maxTogether resyncs take a millisecond, or twenty on a machine that takes away memory that is not used.
	maxTogether = 64
)

// workTogether makes the calls of pods that were claimed, and that probably need nothing, one pod after another in one
// goroutine: for most of them a goroutine would cost more than the call. If a call blocks, the others of its maxTogether pods get a
// goroutine each, and those after them go on together. The caller holds mu, or has a goroutine of wg.
func (w *Workers) workTogether(uids []types.UID) {
	if len(uids) == 0 {
		return
	}
	n := min(len(uids), maxTogether)
	uids, rest := uids[:n], uids[n:]
	var begun atomic.Int64
	next := func() (uid types.UID, ok bool) {
		if i := begun.Add(1) - 1; i < int64(len(uids)) {
			return uids[i], true
		}
		return "", false
	}
	handedOff := make(chan struct{})
	handOff := time.AfterFunc(handOffAfter, func() {
		for uid, ok := next(); ok; uid, ok = next() {
			w.wg.Go(func() { w.work(uid) })
		}
		w.workTogether(rest)
		close(handedOff)
	})
	w.wg.Go(func() {
		for uid, ok := next(); ok; uid, ok = next() {
			w.work(uid)
		}
		if handOff.Stop() {
			w.workTogether(rest)
		} else {
			<-handedOff // it must not start goroutines after this one, for which Drain waits
		}
	})
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
