package podsync

import (
	"context"
	goruntime "runtime"
	"time"
)

// maxTurnWait is the longest that a pod waits for its turn, so that one that hangs delays others
// no longer than this.
const maxTurnWait = time.Second

// turns bounds how many new pods are set up at a time: half as many as there are processors. Of
// many pods that come at once, the first one starts while the others are set up.
type turns chan struct{}

func newTurns() turns { return make(turns, max(1, goruntime.GOMAXPROCS(0)/2)) }

// take waits for a turn, or until maxTurnWait has passed or ctx is done. The result ends the turn.
func (t turns) take(ctx context.Context) (end func()) {
	timeout := time.NewTimer(maxTurnWait)
	defer timeout.Stop()
	select {
	case t <- struct{}{}:
		return func() { <-t }
	case <-timeout.C:
	case <-ctx.Done():
	}
	return func() {}
}
