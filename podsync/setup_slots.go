package podsync

import (
	"context"
	goruntime "runtime"
	"sync"
	"time"
)

const (
	// maxSetupWait is how long all slots can be held before pods go on without one, so that those
	// that hang delay others no longer than this.
	maxSetupWait = time.Second
	// firstAlone is how long the start of the first pod can delay the set-up of others: enough on a
	// machine that has nothing else to do.
	firstAlone = 500 * time.Millisecond
	// aheadOfFirst is how many others are set up meanwhile, so that their starts can follow at once.
	aheadOfFirst = 4
)

// setupSlots bounds how many new pods are set up at a time: half as many as there are processors.
// Of many pods that come at once, the first one starts while only those that follow next are set
// up: what the kernel does for their directories and cgroups slows its start down.
type setupSlots struct {
	slots chan struct{}

	mu       sync.Mutex    // guards the rest
	changed  time.Time     // when a slot was last taken or given back
	starting int           // pods that have come and have not started
	first    chan struct{} // closed when the first has started; nil: there is none
	ahead    int           // how many others need not wait for it
}

func newSetupSlots() *setupSlots {
	return &setupSlots{slots: make(chan struct{}, max(1, goruntime.GOMAXPROCS(0)/2))}
}

// begin is called when a pod comes. It waits until the first one has started, for at most firstAlone
// or until ctx is done; the first and the next ones do not wait. end must be called when the pod
// itself has started or failed to.
func (s *setupSlots) begin(ctx context.Context) (end func()) {
	s.mu.Lock()
	s.starting++
	if s.starting == 1 {
		alone := make(chan struct{})
		s.first, s.ahead = alone, aheadOfFirst
		timeout := time.AfterFunc(firstAlone, func() { s.endFirst(alone) })
		s.mu.Unlock()
		return func() {
			timeout.Stop()
			s.endFirst(alone)
			s.end()
		}
	}
	first := s.first
	if s.ahead > 0 {
		s.ahead--
		first = nil
	}
	s.mu.Unlock()
	if first != nil {
		select {
		case <-first:
		case <-ctx.Done():
		}
	}
	return s.end
}

// end counts a pod that has started.
func (s *setupSlots) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting--
}

// endFirst lets others be set up, if that has not happened yet.
func (s *setupSlots) endFirst(first chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == first {
		s.first = nil
		close(first)
	}
}

// acquire waits for a slot, until none was given back for maxSetupWait or ctx is done. The result
// gives the slot back.
func (s *setupSlots) acquire(ctx context.Context) (release func()) {
	for {
		acquired, wait := s.tryAcquire()
		if acquired {
			return s.release
		}
		if wait <= 0 {
			return func() {}
		}
		timeout := time.NewTimer(wait)
		select {
		case s.slots <- struct{}{}:
			timeout.Stop()
			s.recordChange()
			return s.release
		case <-ctx.Done():
			timeout.Stop()
			return func() {}
		case <-timeout.C:
		}
	}
}

// tryAcquire takes a slot if one is free, and returns else how long to wait for one.
func (s *setupSlots) tryAcquire() (acquired bool, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.slots <- struct{}{}:
		s.changed = time.Now()
		return true, 0
	default:
		return false, maxSetupWait - time.Since(s.changed)
	}
}

func (s *setupSlots) release() {
	s.recordChange()
	<-s.slots
}

func (s *setupSlots) recordChange() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = time.Now()
}
