package cri

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/priority"
)

// limiter decides how many pods may be in the middle of their start at a time.
// More at once than the machine digests make each of them slower and none of
// them earlier. Slots are given in the order of tickets; a pod draws its ticket
// once, so that the oldest is finished first. How many there are follows the
// throughput that was measured, see tuner.
//
// Beside the first pod after a pause few others start, until it has started, or firstAlone: it runs
// as early as the machine lets it, and the others lose next to nothing. How long it takes shows by
// how much those that follow slow each other down.
//
// When few are left of many, twice as many start at a time: none comes after them that would be
// late for it, and the processors do not run out of work at the end.
//
// A slot that is held for much longer than starts take is lent to the next in
// the queue, so that calls that hang delay no other pod. A pod that hangs is tried again,
// and would be alone: where one has hung lately, none is.
type limiter struct {
	slotTimeout time.Duration // the longest that a slot is not lent

	mu      sync.Mutex // guards the rest
	tuner   concurrencyTuner
	first   *time.Timer   // not nil: the first start after a pause is under way
	typical time.Duration // how long a start holds a slot, smoothed; 0: not known
	hungAt  time.Time     // when a slot was lent last; zero: never
	inUse   int
	waiting *priority.Queue[*waiter] // by ticket
	longest int                      // how many have waited at once, since none did last
	drains  bool                     // few are left of many
	tickets uint64
}

const (
	// initialSlotTimeout is for when no start has ended yet: little enough for pods
	// behind ones that hang, and most starts end within it.
	initialSlotTimeout = 2 * time.Second
	// minSlotTimeout keeps machines on which starts take milliseconds from lending
	// at the first hiccup.
	minSlotTimeout = time.Second
	// slowFactor is by how much a start that hangs takes longer than others.
	slowFactor = 4
	// ewmaDivisor is the part that the last start has in what is typical.
	ewmaDivisor = 4
	// firstAlone is long enough for the start of a pod on a machine that has nothing else
	// to do, and little enough for the others.
	firstAlone = 500 * time.Millisecond
	// hangMemory is how long a start that hung is remembered: longer than its call and the
	// back-off until the next one.
	hangMemory = 10 * time.Minute
	// manyWait times the limit is from how many waiting starts on they are many, and fewLeft
	// times until how many they are few.
	manyWait, fewLeft = 6, 2
	// noEpoch is of leases that say nothing about the tuner's limit.
	noEpoch = -1
)

func newLimiter(initial, most int, slotTimeout time.Duration) *limiter {
	return &limiter{
		slotTimeout: slotTimeout, tuner: newTuner(initial, most),
		waiting: priority.New(func(a, b *waiter) bool { return a.ticket < b.ticket }),
	}
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
	epoch int  // of the tuner, or noEpoch
	ended bool // given back or lent; guarded by limiter.mu
}

type waiter struct {
	ticket uint64
	ready  chan *lease // buffered: the giver never blocks
}

// acquire waits for a slot under ticket; 0 draws a new one. An error is ctx's.
func (l *limiter) acquire(ctx context.Context, ticket uint64) (slot, error) {
	l.mu.Lock()
	if ticket == 0 {
		l.tickets++
		ticket = l.tickets
	}
	if l.inUse == 0 && l.waiting.Len() == 0 && l.first == nil && !l.hasHung() {
		l.startFirst()
	}
	w := &waiter{ticket: ticket, ready: make(chan *lease, 1)}
	queued := l.waiting.Push(w)
	l.serve()
	l.mu.Unlock()
	select {
	case got := <-w.ready:
		return slot{l, ticket, got}, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	l.waiting.Remove(queued)
	l.serve() // few may be left now
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
	l.longest = max(l.longest, l.waiting.Len())
	for l.waiting.Len() > 0 {
		l.updateDrains()
		if l.inUse >= l.limit() {
			return
		}
		w := l.waiting.Pop()
		l.inUse++
		given := &lease{began: time.Now(), epoch: l.tuner.epoch}
		if l.first != nil || l.drains {
			given.epoch = noEpoch
		}
		given.timer = time.AfterFunc(l.slotTimeoutNow(), func() { l.expireSlot(given) })
		w.ready <- given
	}
	l.longest = 0
	l.updateDrains()
}

// updateDrains finds out whether few are left of many. What was begun before tells the tuner nothing
// then, since more are under way beside it. l.mu is held.
func (l *limiter) updateDrains() {
	limit := l.tuner.limit
	if drains := l.longest >= manyWait*limit && l.waiting.Len() <= fewLeft*limit; drains != l.drains {
		l.drains = drains
		l.tuner.newEpoch()
	}
}

// limit is how many slots there are now. l.mu is held.
func (l *limiter) limit() int {
	switch {
	case l.first != nil:
		return max(1, l.tuner.initial/3)
	case l.drains:
		return max(l.tuner.limit, min(2*l.tuner.best, l.tuner.max))
	}
	return l.tuner.limit
}

// startFirst has few others start beside the next one. l.mu is held.
func (l *limiter) startFirst() {
	var timer *time.Timer
	timer = time.AfterFunc(firstAlone, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.first != timer {
			return // it has ended in the same moment
		}
		l.tuner.alone = 0 // longer than before, and not known how long
		l.endFirst()
		l.serve()
	})
	l.first = timer
}

// hasHung reports whether a start has hung lately. l.mu is held.
func (l *limiter) hasHung() bool { return !l.hungAt.IsZero() && time.Since(l.hungAt) < hangMemory }

// endFirst lets others start. l.mu is held.
func (l *limiter) endFirst() {
	if l.first != nil {
		l.first.Stop()
		l.first = nil
	}
}

// slotTimeoutNow is how long a slot is held before it counts as hanging. l.mu is held.
func (l *limiter) slotTimeoutNow() time.Duration {
	if l.typical == 0 {
		return min(initialSlotTimeout, l.slotTimeout)
	}
	return min(max(slowFactor*l.typical, minSlotTimeout), l.slotTimeout)
}

// ended takes up how long a start took, one whose slot was lent meanwhile too.
// Others will take longer than one that was alone. l.mu is held.
func (l *limiter) ended(took time.Duration, alone bool) {
	if alone {
		took = max(took, cmp.Or(l.typical, initialSlotTimeout/slowFactor))
	}
	if l.typical == 0 {
		l.typical = took
		return
	}
	l.typical += (took - l.typical) / ewmaDivisor
}

// expireSlot counts a slot that was held for too long as free.
func (l *limiter) expireSlot(occupied *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if occupied.ended {
		return
	}
	occupied.ended = true
	l.inUse--
	l.hungAt = time.Now()
	l.tuner.pause()
	l.serve()
}

// release gives the slot back. It is to be called once. started says that what it was held
// for was done in full: such slots are what throughput is measured by.
func (s slot) release(started bool) {
	if s.lease == nil {
		return
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	took := time.Since(s.lease.began)
	if started {
		s.l.ended(took, s.lease.epoch == noEpoch)
	}
	if s.lease.ended {
		return
	}
	s.lease.ended = true
	s.lease.timer.Stop()
	if started && s.l.first != nil {
		s.l.tuner.alone = took
	}
	s.l.endFirst()
	if started {
		s.l.tuner.done(took, s.lease.epoch, s.l.waiting.Len())
	}
	s.l.inUse--
	s.l.serve()
}

// isAcquired reports whether the slot was not given back yet, also if it was lent
// meanwhile.
func (s slot) isAcquired() bool { return s.lease != nil }
