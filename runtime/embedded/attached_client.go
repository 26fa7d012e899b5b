package embedded

import "github.com/sublet-dev/agent/internal/notify"

const (
	// maxUnread is the number of chunks that wait for an attached client before the
	// container waits, too.
	maxUnread = 16
	// maxUnreadRest is the number of them after the container has exited: room for all
	// that a pipe can hold, and a bound for others that still have it open.
	maxUnreadRest = 128
)

// attachedClient is one attached client. A slow one slows the container down, as a slow
// terminal does, until the container has exited, and delays no other client. What is left
// for it then waits for it.
type attachedClient struct {
	more chan struct{} // has a token while there may be chunks
	end  chan struct{} // closed when no chunk follows

	chunks []chunk // guarded by containerStreams.mu
}

// chunk is a piece of output for an attached client.
type chunk struct {
	stream int
	data   []byte
}

func newAttachedClient() *attachedClient {
	return &attachedClient{more: make(chan struct{}, 1), end: make(chan struct{})}
}

// attach sends further output to t until detach, or until t.end is closed.
func (c *containerStreams) attach(t *attachedClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		close(t.end)
		return
	}
	if c.attached == nil {
		c.attached = map[*attachedClient]struct{}{}
	}
	c.attached[t] = struct{}{}
}

func (c *containerStreams) detach(t *attachedClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attached, t)
	c.taken.Broadcast()
}

// take returns the next chunk for t.
func (c *containerStreams) take(t *attachedClient) (k chunk, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(t.chunks) == 0 {
		return k, false
	}
	k, t.chunks[0] = t.chunks[0], k // what was written is not kept
	if t.chunks = t.chunks[1:]; len(t.chunks) > 0 {
		notify.Send(t.more)
	}
	c.taken.Broadcast()
	return k, true
}

// enqueue gives a chunk to all clients. One that has left too much of the rest is
// given no more. The caller holds mu.
func (c *containerStreams) enqueue(k chunk) {
	for t := range c.attached {
		if c.drained && len(t.chunks) >= maxUnreadRest {
			delete(c.attached, t)
			close(t.end)
			continue
		}
		t.chunks = append(t.chunks, k)
		notify.Send(t.more)
	}
}

// isBlocked reports whether the container waits for a client. The caller holds mu.
func (c *containerStreams) isBlocked() bool {
	if c.drained || c.closed {
		return false
	}
	for t := range c.attached {
		if len(t.chunks) > maxUnread {
			return true
		}
	}
	return false
}
