package podworkers

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/priority"
)

// requeueTimes has the requeue time of each pod that has one. The times must have
// monotonic readings, because the order of times of different clocks changes when
// a clock is set. The zero value is empty.
//
// Pods with one time share an item of the queue: resyncs are aligned, so that there are few times, and a pod costs few
// accesses to memory that was not used for long.
type requeueTimes struct {
	queue *priority.Queue[*requeueGroup]
	times map[time.Time]*priority.Item[*requeueGroup] // with the monotonic readings, as a key
	pods  map[types.UID]requeuedPod
}

// requeueGroup are the pods that are requeued at one time.
type requeueGroup struct {
	at   time.Time
	uids []types.UID
}

// requeuedPod is where a pod is.
type requeuedPod struct {
	group *requeueGroup
	index int // in uids
}

// set sets when a pod is requeued; the zero time means never.
func (r *requeueTimes) set(uid types.UID, at time.Time) {
	if p, ok := r.pods[uid]; ok {
		if p.group.at.Equal(at) {
			return
		}
		r.remove(uid, p)
	}
	if at.IsZero() {
		return
	}
	if r.pods == nil {
		r.pods, r.times = map[types.UID]requeuedPod{}, map[time.Time]*priority.Item[*requeueGroup]{}
		r.queue = priority.New(func(a, b *requeueGroup) bool { return a.at.Before(b.at) })
	}
	item := r.times[at]
	if item == nil {
		item = r.queue.Push(&requeueGroup{at: at})
		r.times[at] = item
	}
	g := item.Value
	r.pods[uid] = requeuedPod{g, len(g.uids)}
	g.uids = append(g.uids, uid)
}

// remove removes a pod from its group.
func (r *requeueTimes) remove(uid types.UID, p requeuedPod) {
	delete(r.pods, uid)
	last := len(p.group.uids) - 1
	if moved := p.group.uids[last]; moved != uid {
		p.group.uids[p.index] = moved
		r.pods[moved] = p
	}
	p.group.uids[last] = ""
	if p.group.uids = p.group.uids[:last]; last == 0 {
		r.queue.Remove(r.times[p.group.at])
		delete(r.times, p.group.at)
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
		g := r.queue.Pop()
		delete(r.times, g.at)
		for _, uid := range g.uids {
			delete(r.pods, uid)
		}
		uids = append(uids, g.uids...)
	}
	return uids
}

// overdue returns how many pods were due before at. It does not rely on the order
// of the queue, because it is the health check for it.
func (r *requeueTimes) overdue(at time.Time) int {
	overdue := 0
	for _, p := range r.pods {
		if p.group.at.Before(at) {
			overdue++
		}
	}
	return overdue
}
