package syncloop

import (
	"container/heap"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/monotonic"
)

// requeueItem is a pod and the time at which it is requeued.
type requeueItem struct {
	uid types.UID
	at  time.Time
	pos int // in the heap
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
	d, _ := x.(*requeueItem)
	d.pos = len(*h)
	*h = append(*h, d)
}

// Pop implements heap.Interface.
func (h *requeueHeap) Pop() any {
	old := *h
	d := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return d
}

// requeueTimes has one requeue time per pod, the last that was set. Times are on the
// monotonic clock, because the order of times of different clocks changes when a clock
// is set. The zero value is empty.
type requeueTimes struct {
	heap requeueHeap
	pods map[types.UID]*requeueItem
}

// set sets when a pod is requeued; the zero time means never.
func (d *requeueTimes) set(uid types.UID, at time.Time) {
	at = monotonic.At(at, time.Now())
	p := d.pods[uid]
	switch {
	case p == nil && at.IsZero():
	case p == nil:
		if d.pods == nil {
			d.pods = map[types.UID]*requeueItem{}
		}
		p = &requeueItem{uid: uid, at: at}
		d.pods[uid] = p
		heap.Push(&d.heap, p)
	case at.IsZero():
		delete(d.pods, uid)
		heap.Remove(&d.heap, p.pos)
	default:
		p.at = at
		heap.Fix(&d.heap, p.pos)
	}
}

// next returns the time of the first pod, or the zero time.
func (d *requeueTimes) next() time.Time {
	if len(d.heap) == 0 {
		return time.Time{}
	}
	return d.heap[0].at
}

// overdue returns how many pods were due before at. It does not rely on the order of the
// heap, because it is the health check for it.
func (d *requeueTimes) overdue(at time.Time) int {
	overdue := 0
	for _, p := range d.heap {
		if p.at.Before(at) {
			overdue++
		}
	}
	return overdue
}

// take removes and returns the pods that are due, in the order of their times.
func (d *requeueTimes) take(now time.Time) []types.UID {
	var uids []types.UID
	for len(d.heap) > 0 && !now.Before(d.heap[0].at) {
		uid := d.heap[0].uid
		heap.Pop(&d.heap)
		delete(d.pods, uid)
		uids = append(uids, uid)
	}
	return uids
}
