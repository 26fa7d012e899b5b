package cri

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// errNotStopped is why a container is not stopped: one of an earlier stage still runs, and
// may need it.
var errNotStopped = errors.New("not stopped, because the runtime has not answered the stop of another container")

// stage is one of the stages in which containers are stopped. Their preStop hooks do not wait for it.
type stage struct {
	earlier *stage        // nil: this is the first
	running atomic.Int32  // containers whose stop has not come to its end
	ended   chan struct{} // closed when there are none
	failed  atomic.Bool   // later stages do not begin; set before ended is closed
}

// stagesOf returns the stage of each stop. The stops are in the order of their stages.
func stagesOf(stops []runtime.ContainerStop) []*stage {
	stages := make([]*stage, len(stops))
	var last *stage
	for i := range stops {
		if i == 0 || stops[i].Stage != stops[i-1].Stage {
			last = &stage{earlier: last, ended: make(chan struct{})}
		}
		last.running.Add(1)
		stages[i] = last
	}
	return stages
}

// wait waits until the containers of the earlier stages have ended. At the deadline it is over
// in any case: there is no time left to keep an order, and all that still runs is stopped at once.
func (s *stage) wait(ctx context.Context, deadline time.Time) error {
	expired := time.NewTimer(time.Until(deadline))
	defer expired.Stop()
	for e := s.earlier; e != nil; e = e.earlier {
		select {
		case <-e.ended:
			if e.failed.Load() {
				return errNotStopped
			}
		case <-expired.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("wait for other containers: %w", ctx.Err())
		}
	}
	return nil
}

// end is called once for each container of the stage. proceed says that later stages may begin.
func (s *stage) end(proceed bool) {
	if !proceed {
		s.failed.Store(true)
	}
	if s.running.Add(-1) == 0 {
		close(s.ended)
	}
}
