package podworkers

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/priority"
)

// requeueTimes has the requeue time of each pod that has one. The times must have
// monotonic readings, because the order of times of different clocks changes when
// a clock is set. The zero value is empty.
type requeueTimes struct {
	queue *priority.Queue[requeueItem]
	pods  map[types.UID]*priority.Item[requeueItem]
}

// requeueItem is a pod and the time at which it is requeued.
type requeueItem struct {
	uid types.UID
	at  time.Time
}

// set sets when a pod is requeued; the zero time means never.
func (r *requeueTimes) set(uid types.UID, at time.Time) {
	p := r.pods[uid]
	switch {
	case p == nil && at.IsZero():
	case p == nil:
		if r.pods == nil {
			r.pods = make(map[types.UID]*priority.Item[requeueItem])
			r.queue = priority.New(func(a, b requeueItem) bool { return a.at.Before(b.at) })
		}
		r.pods[uid] = r.queue.Push(requeueItem{uid, at})
	case at.IsZero():
		delete(r.pods, uid)
		r.queue.Remove(p)
	default:
		p.Value.at = at
		r.queue.Fix(p)
	}
}

// next returns the first requeue time, or the zero time.
func (r *requeueTimes) next() time.Time {
	if len(r.pods) == 0 {
		return time.Time{}
	}
	return r.queue.First().at
}

// take removes and returns the pods that are due, in the order of their times.
func (r *requeueTimes) take(now time.Time) []types.UID {
	var uids []types.UID
	for len(r.pods) > 0 && !now.Before(r.queue.First().at) {
		uid := r.queue.First().uid
		r.set(uid, time.Time{})
		uids = append(uids, uid)
	}
	return uids
}

// overdue returns how many pods were due before at. It does not rely on the order
// of the queue, because it is the health check for it.
func (r *requeueTimes) overdue(at time.Time) int {
	overdue := 0
	for _, p := range r.pods {
		if p.Value.at.Before(at) {
			overdue++
		}
	}
	return overdue
}
