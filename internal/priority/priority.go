// Package priority has a typed priority queue on top of container/heap.
package priority

import (
	"container/heap"
	"iter"
)

// Queue has its first item, by the order given to New, on top. Items that are equal in
// that order come in any order. It may not be used from several goroutines at once.
type Queue[T any] struct{ items items[T] }

// Item is a value in a Queue.
type Item[T any] struct {
	// Value is the item's value. After a change that concerns the order, Fix must be
	// called.
	Value T
	index int // in the queue; -1 if it was removed
}

// New returns an empty queue. less reports whether a comes before b.
func New[T any](less func(a, b T) bool) *Queue[T] { return &Queue[T]{items[T]{less: less}} }

// Len returns the number of items.
func (q *Queue[T]) Len() int { return len(q.items.list) }

// First returns the first value. It panics if the queue is empty.
func (q *Queue[T]) First() T { return q.items.list[0].Value }

// Push adds a value, and returns its item for Fix and Remove.
func (q *Queue[T]) Push(v T) *Item[T] {
	it := &Item[T]{Value: v}
	heap.Push(&q.items, it)
	return it
}

// Pop removes and returns the first value. It panics if the queue is empty.
func (q *Queue[T]) Pop() T {
	first := q.items.list[0]
	heap.Remove(&q.items, 0)
	return first.Value
}

// Fix restores the order after a change of the item's value. The item must be in the
// queue.
func (q *Queue[T]) Fix(it *Item[T]) { heap.Fix(&q.items, it.index) }

// Remove removes an item. An item that was removed already is ignored.
func (q *Queue[T]) Remove(it *Item[T]) {
	if it.index >= 0 {
		heap.Remove(&q.items, it.index)
	}
}

// All returns all values, in any order.
func (q *Queue[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, it := range q.items.list {
			if !yield(it.Value) {
				return
			}
		}
	}
}

// items implements heap.Interface.
type items[T any] struct {
	less func(a, b T) bool
	list []*Item[T]
}

func (h *items[T]) Len() int           { return len(h.list) }
func (h *items[T]) Less(i, j int) bool { return h.less(h.list[i].Value, h.list[j].Value) }

func (h *items[T]) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}

// Push appends an item; only package heap calls it.
func (h *items[T]) Push(x any) {
	it, _ := x.(*Item[T])
	it.index = len(h.list)
	h.list = append(h.list, it)
}

// Pop removes the last item; only package heap calls it.
func (h *items[T]) Pop() any {
	last := len(h.list) - 1
	it := h.list[last]
	h.list[last] = nil // so that its value can be collected
	h.list = h.list[:last]
	it.index = -1
	return it
}
