package podsync

import (
	"context"
	goruntime "runtime"
	"sync"
	"time"
)

// maxSetupWait is how long all slots can be held before pods go on without one, so that those
// that hang delay others no longer than this.
const maxSetupWait = time.Second

// setupSlots bounds how many new pods are set up at a time: half as many as there are processors. What
// the kernel does for the directories and cgroups of many pods that come at once would slow down the
// start of the first one, which leaves half of the processors to it.
type setupSlots struct {
	slots chan struct{}

	mu      sync.Mutex // guards the rest
	changed time.Time  // when a slot was last taken or given back
}

func newSetupSlots() *setupSlots {
	return &setupSlots{slots: make(chan struct{}, max(1, goruntime.GOMAXPROCS(0)/2))}
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
