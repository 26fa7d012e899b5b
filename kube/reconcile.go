package kube

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/podspec"
)

const (
	// reconcilePeriod is the time between two comparisons of all statuses.
	reconcilePeriod = time.Minute
	// minResendPeriod is the minimum time between two corrections of one pod, so that
	// two that disagree about a status do not keep the API server busy.
	minResendPeriod = 10 * time.Second
)

// reconciler compares what the API server has with what it was sent, and has statuses
// sent again that others have changed.
type reconciler struct {
	k    *Kube
	wake chan struct{} // one slot: due was changed

	mu   sync.Mutex              // guards due
	due  map[types.UID]time.Time // pods to compare
	last map[types.UID]time.Time // last corrections; used by run only
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
	r.mu.Lock()
	if _, ok := r.due[uid]; !ok {
		r.due[uid] = time.Now()
	}
	r.mu.Unlock()
	notify.Send(r.wake)
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
	sent := r.k.statuses.sentPods()
	for uid, at := range r.last {
		if now.Sub(at) >= minResendPeriod {
			delete(r.last, uid)
		}
	}
	r.mu.Lock()
	var ready []types.UID
	for uid, due := range r.due {
		if at, ok := r.last[uid]; ok {
			due = at.Add(minResendPeriod)
		}
		if !due.After(now) {
			ready = append(ready, uid)
			delete(r.due, uid)
		} else if d := due.Sub(now); !ok || d < wait {
			wait, ok = d, true
		}
	}
	r.mu.Unlock()
	for _, uid := range ready {
		if s, ok := sent[uid]; ok && r.k.statuses.isOutdated(s) {
			r.last[uid] = now
			r.k.resend(uid)
		}
	}
	return wait, ok
}
