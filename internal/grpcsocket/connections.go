package grpcsocket

import (
	"log/slog"
	"net"
	"sync"
)

// connections is a listener with a limit of connections: one more is closed at once. Close also closes
// the connections, because gRPC waits for those that have not said a word yet.
type connections struct {
	net.Listener

	limit int
	log   *slog.Logger

	mu     sync.Mutex
	open   map[*connection]struct{} // nil after Close
	isFull bool                     // one was rejected since half of them were free
}

func limitConnections(listener net.Listener, limit int, log *slog.Logger) *connections {
	return &connections{Listener: listener, limit: limit, log: log, open: make(map[*connection]struct{})}
}

// Accept implements net.Listener.
func (l *connections) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := (&connection{Conn: conn, listener: l}); l.add(c) {
			return c, nil
		}
		_ = conn.Close() // there is nothing to lose
	}
}

// add reports whether there is room for a connection.
func (l *connections) add(c *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		return false
	}
	if len(l.open) >= l.limit {
		if !l.isFull {
			l.isFull = true
			l.log.Warn("connections rejected: too many are open", slog.Int("limit", l.limit))
		}
		return false
	}
	l.open[c] = struct{}{}
	return true
}

// Close implements net.Listener.
func (l *connections) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	open := l.open
	l.open = nil
	l.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close() // as at the end of the process
	}
	return err
}

// connection is one of the connections.
type connection struct {
	net.Conn

	listener *connections
}

// Close implements net.Conn.
func (c *connection) Close() error {
	l := c.listener
	l.mu.Lock()
	delete(l.open, c)
	l.isFull = l.isFull && len(l.open) > l.limit/2
	l.mu.Unlock()
	return c.Conn.Close()
}
