package kube

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/podspec"
)

const (
	// reconcilePeriod is the time between two comparisons of all statuses.
	reconcilePeriod = time.Minute
	// A pod is corrected maxResends times at once, and then once per resendPeriod, so that
	// two that disagree about a status do not keep the API server busy.
	maxResends   = 3
	resendPeriod = 10 * time.Second
)

// reconciler compares what the API server has with what it was sent, and has statuses
// sent again that others have changed.
type reconciler struct {
	k    *Kube
	wake chan struct{} // one slot: due was changed

	limits map[types.UID]*rate.Limiter // of pods that were corrected lately; used by run only

	mu  sync.Mutex              // guards due
	due map[types.UID]time.Time // pods to compare, and when
}

// changed has a pod compared that was changed or deleted in the API server.
func (r *reconciler) changed(pod *corev1.Pod, _ bool) {
	if !podspec.IsMirror(pod) {
		r.compare(pod.UID)
		return
	}
	for uid, sent := range r.k.statuses.sentPods() {
		if podspec.IsStatic(sent.pod) && keyOf(sent.pod) == keyOf(pod) {
			r.compare(uid)
		}
	}
}

func (r *reconciler) compare(uid types.UID) {
	r.compareAt(uid, time.Now())
	notify.Send(r.wake)
}

// compareAt has a pod compared at that time, or earlier if it is due before.
func (r *reconciler) compareAt(uid types.UID, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if due, ok := r.due[uid]; !ok || at.Before(due) {
		r.due[uid] = at
	}
}

// run compares until ctx is done.
func (r *reconciler) run(ctx context.Context) {
	all := time.NewTicker(reconcilePeriod)
	defer all.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-all.C:
			for uid := range r.k.statuses.sentPods() {
				r.compare(uid)
			}
			r.k.mirrors.removeOrphans(ctx)
		case <-r.wake:
		case <-next.C:
		}
		if wait, ok := r.compareDue(time.Now()); ok {
			next.Reset(wait)
		}
	}
}

// compareDue compares the pods that are due, and returns when the next one is.
func (r *reconciler) compareDue(now time.Time) (wait time.Duration, ok bool) {
	maps.DeleteFunc(r.limits, func(_ types.UID, l *rate.Limiter) bool { return l.TokensAt(now) >= maxResends })
	sent := r.k.statuses.sentPods()
	for _, uid := range r.takeDue(now) {
		s, known := sent[uid]
		if !known || !r.k.statuses.isOutdated(s) {
			continue
		}
		if delay := r.reserve(uid, now); delay > 0 {
			r.compareAt(uid, now.Add(delay))
			continue
		}
		r.k.resend(uid)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, due := range r.due {
		if d := due.Sub(now); !ok || d < wait {
			wait, ok = d, true
		}
	}
	return wait, ok
}

// takeDue removes and returns the pods that are due.
func (r *reconciler) takeDue(now time.Time) (uids []types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, due := range r.due {
		if !due.After(now) {
			uids = append(uids, uid)
			delete(r.due, uid)
		}
	}
	return uids
}

// reserve counts a correction of a pod, or returns when it may be made.
func (r *reconciler) reserve(uid types.UID, now time.Time) (delay time.Duration) {
	l := r.limits[uid]
	if l == nil {
		l = rate.NewLimiter(rate.Every(resendPeriod), maxResends)
		r.limits[uid] = l
	}
	reservation := l.ReserveN(now, 1)
	if delay = reservation.DelayFrom(now); delay > 0 {
		reservation.CancelAt(now)
	}
	return delay
}
