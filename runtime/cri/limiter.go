package cri

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// limiter decides how many pods may be in the middle of their start at a time.
// More at once than the machine digests make each of them slower and none of
// them earlier. Slots are given in the order of tickets; a pod draws its ticket
// once, so that the oldest is finished first. How many there are follows the
// throughput that was measured, see tuner.
//
// A slot that is held for longer than patience is lent to the next in the
// queue, so that calls that hang hold up nobody else.
type limiter struct {
	patience time.Duration

	mu      sync.Mutex // guards the rest
	tuner   tuner
	inUse   int
	waiting queue
	tickets uint64
}

func newLimiter(initial, most int, patience time.Duration) *limiter {
	return &limiter{patience: patience, tuner: newTuner(initial, most)}
}

// slot is the right to work on one pod's start. The zero slot holds nothing.
type slot struct {
	l      *limiter
	ticket uint64
	lease  *lease
}

type lease struct {
	timer *time.Timer
	began time.Time
	epoch int  // of the tuner
	over  bool // given back or lent; guarded by limiter.mu
}

type waiter struct {
	ticket uint64
	ready  chan *lease // buffered: the giver never blocks
	index  int         // in the queue; -1 once taken out
}

// acquire waits for a slot under ticket; 0 draws a new one. An error is ctx's.
func (l *limiter) acquire(ctx context.Context, ticket uint64) (slot, error) {
	l.mu.Lock()
	if ticket == 0 {
		l.tickets++
		ticket = l.tickets
	}
	w := &waiter{ticket: ticket, ready: make(chan *lease, 1)}
	heap.Push(&l.waiting, w)
	l.serve()
	l.mu.Unlock()
	select {
	case got := <-w.ready:
		return slot{l, ticket, got}, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	if w.index >= 0 {
		heap.Remove(&l.waiting, w.index)
	}
	l.mu.Unlock()
	select {
	case got := <-w.ready: // given in the same moment
		slot{l, ticket, got}.release(false)
	default:
	}
	return slot{}, ctx.Err()
}

// serve gives out what is free. l.mu is held.
func (l *limiter) serve() {
	for len(l.waiting) > 0 && l.inUse < l.tuner.limit {
		w, _ := heap.Pop(&l.waiting).(*waiter)
		l.inUse++
		given := &lease{began: time.Now(), epoch: l.tuner.epoch}
		given.timer = time.AfterFunc(l.patience, func() { l.lend(given) })
		w.ready <- given
	}
}

// lend counts a slot that was held for too long as free.
func (l *limiter) lend(held *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held.over {
		return
	}
	held.over = true
	l.inUse--
	l.tuner.pause()
	l.serve()
}

// release gives the slot back, at most once. started says that what it was held
// for was done in full: such slots are what throughput is measured by.
func (s slot) release(started bool) {
	if s.lease == nil {
		return
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.lease.over {
		return
	}
	s.lease.over = true
	s.lease.timer.Stop()
	if started {
		s.l.tuner.done(time.Since(s.lease.began), s.lease.epoch, len(s.l.waiting) > 0)
	}
	s.l.inUse--
	s.l.serve()
}

// held reports whether the slot was not given back yet. A lent slot is held.
func (s slot) held() bool { return s.lease != nil }

// queue is a heap of waiters by ticket.
type queue []*waiter

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].ticket < q[j].ticket }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	w, _ := x.(*waiter)
	w.index = len(*q)
	*q = append(*q, w)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	last.index = -1
	return last
}
