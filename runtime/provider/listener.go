package provider

import (
	"net"
	"sync"
)

// listener knows its open connections: http.Server.Close leaves those alone that streams
// have taken over.
type listener struct {
	net.Listener

	mu    sync.Mutex
	conns map[*trackedConn]struct{}
}

// trackedConn is forgotten when it is closed.
type trackedConn struct {
	net.Conn
	l *listener
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &trackedConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		l.conns = map[*trackedConn]struct{}{}
	}
	l.conns[c] = struct{}{}
	return c, nil
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// closeConns closes the connections that are open.
func (l *listener) closeConns() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Conn.Close()
	}
}
