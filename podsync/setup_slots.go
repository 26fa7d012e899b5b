package podsync

import (
	"context"
	goruntime "runtime"
	"time"
)

// maxSetupWait is the longest that a pod waits for a slot, so that one that hangs delays others no
// longer than this.
const maxSetupWait = time.Second

// setupSlots bounds how many new pods are set up at a time: half as many as there are processors.
// Of many pods that come at once, the first one starts while the others are set up.
type setupSlots chan struct{}

func newSetupSlots() setupSlots { return make(setupSlots, max(1, goruntime.GOMAXPROCS(0)/2)) }

// acquire waits for a slot, or until maxSetupWait has passed or ctx is done. The result gives the
// slot back.
func (s setupSlots) acquire(ctx context.Context) (release func()) {
	timeout := time.NewTimer(maxSetupWait)
	defer timeout.Stop()
	select {
	case s <- struct{}{}:
		return func() { <-s }
	case <-timeout.C:
	case <-ctx.Done():
	}
	return func() {}
}
