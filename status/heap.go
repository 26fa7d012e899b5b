package status

import (
	"container/heap"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// queuedPod is a pod to be sent to a sink. It is in one queue, or in none during
// the send.
type queuedPod struct {
	uid      types.UID
	since    time.Time // since when it waits to be sent
	due      time.Time // when its back-off ends
	failures int       // in a row
}

// queue is a heap of items.
type queue struct {
	less  func(a, b *queuedPod) bool
	items items
}

func (q *queue) len() int          { return len(q.items.list) }
func (q *queue) first() *queuedPod { return q.items.list[0] }

func (q *queue) push(it *queuedPod) {
	q.items.less = q.less
	heap.Push(&q.items, it)
}

func (q *queue) pop() *queuedPod {
	it, _ := heap.Pop(&q.items).(*queuedPod)
	return it
}

// items implements heap.Interface.
type items struct {
	less func(a, b *queuedPod) bool
	list []*queuedPod
}

func (h *items) Len() int           { return len(h.list) }
func (h *items) Less(i, j int) bool { return h.less(h.list[i], h.list[j]) }
func (h *items) Swap(i, j int)      { h.list[i], h.list[j] = h.list[j], h.list[i] }

// Push adds an item; only the heap calls it.
func (h *items) Push(x any) {
	if it, ok := x.(*queuedPod); ok {
		h.list = append(h.list, it)
	}
}

// Pop takes the last item; only the heap calls it.
func (h *items) Pop() any {
	last := len(h.list) - 1
	it := h.list[last]
	h.list[last] = nil
	h.list = h.list[:last]
	return it
}
