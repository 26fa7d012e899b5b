//go:build linux || darwin

package hostprocess

import (
	"sync"
	"time"
)

// cpuTime counts the processor time of a container, which never falls: clients take that for a new
// beginning. The sum of its processes does, when one exits that its parent does not wait for.
type cpuTime struct {
	mu      sync.Mutex // guards the rest
	at      time.Time  // of the last sum
	sum     time.Duration
	hasLess bool // the last sum was less than the one before
	total   time.Duration
}

// add returns the total after a sum that was read at a time. A sum that is less once is ignored:
// a process may have passed its time on to its parent while they were read.
func (c *cpuTime) add(sum time.Duration, at time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !at.After(c.at) {
		return c.total
	}
	c.at = at
	if sum < c.sum && !c.hasLess {
		c.hasLess = true
		return c.total
	}
	c.total += max(0, sum-c.sum)
	c.sum, c.hasLess = sum, false
	return c.total
}
