package podworkers

import (
	"container/heap"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// requeueTimes has the requeue time of each pod that has one. The times must have
// monotonic readings, because the order of times of different clocks changes when
// a clock is set. The zero value is empty.
type requeueTimes struct {
	heap requeueHeap
	pods map[types.UID]*requeueItem
}

// requeueItem is a pod and the time at which it is requeued.
type requeueItem struct {
	uid types.UID
	at  time.Time
	pos int // in the heap
}

// set sets when a pod is requeued; the zero time means never.
func (r *requeueTimes) set(uid types.UID, at time.Time) {
	p := r.pods[uid]
	switch {
	case p == nil && at.IsZero():
	case p == nil:
		if r.pods == nil {
			r.pods = map[types.UID]*requeueItem{}
		}
		p = &requeueItem{uid: uid, at: at}
		r.pods[uid] = p
		heap.Push(&r.heap, p)
	case at.IsZero():
		delete(r.pods, uid)
		heap.Remove(&r.heap, p.pos)
	default:
		p.at = at
		heap.Fix(&r.heap, p.pos)
	}
}

// next returns the first requeue time, or the zero time.
func (r *requeueTimes) next() time.Time {
	if len(r.heap) == 0 {
		return time.Time{}
	}
	return r.heap[0].at
}

// take removes and returns the pods that are due, in the order of their times.
func (r *requeueTimes) take(now time.Time) []types.UID {
	var uids []types.UID
	for len(r.heap) > 0 && !now.Before(r.heap[0].at) {
		uid := r.heap[0].uid
		r.set(uid, time.Time{})
		uids = append(uids, uid)
	}
	return uids
}

// overdue returns how many pods were due before at. It does not rely on the order
// of the heap, because it is the health check for it.
func (r *requeueTimes) overdue(at time.Time) int {
	overdue := 0
	for _, p := range r.heap {
		if p.at.Before(at) {
			overdue++
		}
	}
	return overdue
}

// requeueHeap has the first pod on top.
type requeueHeap []*requeueItem

func (h requeueHeap) Len() int           { return len(h) }
func (h requeueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h requeueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

// Push implements heap.Interface.
func (h *requeueHeap) Push(x any) {
	p, _ := x.(*requeueItem)
	p.pos = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *requeueHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return p
}
