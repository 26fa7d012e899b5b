package hostprocess

import (
	"cmp"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/diskusage"
	"github.com/sublet-dev/agent/runtime"
)

// maxCountDuration bounds how long one measurement counts files. The next one continues.
const maxCountDuration = 100 * time.Millisecond

// scratchUsage measures the scratch directory of one container. The container decides
// how many files it has.
type scratchUsage struct {
	mu     sync.Mutex
	walk   *diskusage.Walk   // the count that has not ended; nil: none
	last   runtime.DiskUsage // the last result
	closed bool
	limit  time.Duration // of one measurement; 0: maxCountDuration
}

// measure counts files for at most maxCountDuration. Until a count has ended, the result
// is that of the last one, or the count so far if that is more.
func (s *scratchUsage) measure(dir string) runtime.DiskUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.last
	}
	if s.walk == nil {
		s.walk = diskusage.New(dir)
	}
	deadline := time.Now().Add(cmp.Or(s.limit, maxCountDuration))
	for s.walk.Step(); !s.walk.Done() && time.Now().Before(deadline); {
		s.walk.Step()
	}
	used := s.walk.SoFar()
	if s.walk.Done() {
		s.walk, s.last = nil, used
	} else {
		s.last = runtime.DiskUsage{Bytes: max(used.Bytes, s.last.Bytes), Inodes: max(used.Inodes, s.last.Inodes)}
	}
	return s.last
}

// close ends measurements. A count has directories open.
func (s *scratchUsage) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.walk != nil {
		s.walk.Close()
	}
	s.walk, s.closed = nil, true
}
