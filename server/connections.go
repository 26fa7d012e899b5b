package server

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// strangerAge is how long a connection remains open at least if its client has no right here: a handshake
// and an answer of the API server about a client take less.
const strangerAge = time.Second

// connections is a listener with a limit of connections. One more waits until another ends, or takes the
// place of one whose client has not used a right yet: without that, clients without any could keep out
// those who have one.
type connections struct {
	net.Listener

	slots     chan struct{} // a slot for each connection
	closed    chan struct{}
	closeOnce sync.Once

	mu        sync.Mutex
	strangers []*connection // the oldest first
}

func limitConnections(listener net.Listener, limit int) *connections {
	return &connections{Listener: listener, slots: make(chan struct{}, limit), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *connections) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !l.take() {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c := &connection{Conn: conn, listener: l, host: host(conn), since: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers = append(l.strangers, c)
	return c, nil
}

// Close implements net.Listener.
func (l *connections) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// take waits for a slot. It returns false if the listener is closed before.
func (l *connections) take() bool {
	for !l.tryTake() {
		stranger := l.stranger()
		taken, isDue := l.wait(stranger)
		if !isDue {
			return taken
		}
		if l.tryTake() { // one has ended at that very time
			return true
		}
		l.end(stranger)
	}
	return true
}

// tryTake takes a slot if one is free.
func (l *connections) tryTake() bool {
	select {
	case l.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// wait waits for a slot until the stranger has to give way. Without a stranger there is none later, either: no further
// connection comes before this one is accepted.
func (l *connections) wait(stranger *connection) (taken, isDue bool) {
	due := &time.Timer{}
	if stranger != nil {
		due = time.NewTimer(time.Until(stranger.since.Add(strangerAge)))
		defer due.Stop()
	}
	select {
	case l.slots <- struct{}{}:
		return true, false
	case <-l.closed:
		return false, false
	case <-due.C:
		return false, true
	}
}

// stranger returns the connection that has to give way first: the oldest of the host that has most of those
// without a right, so that a host with many does not displace those of others.
func (l *connections) stranger() *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	count := map[string]int{}
	for _, c := range l.strangers {
		count[c.host]++
	}
	var first *connection
	for _, c := range l.strangers {
		if first == nil || count[c.host] > count[first.host] {
			first = c
		}
	}
	return first
}

// end closes a connection that is still a stranger's.
func (l *connections) end(c *connection) {
	if l.remove(c) {
		_ = c.Close() // there is no answer to lose
	}
}

// remove reports whether the connection was a stranger's until now.
func (l *connections) remove(c *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.strangers, c)
	if i < 0 {
		return false
	}
	l.strangers = slices.Delete(l.strangers, i, i+1)
	return true
}

// connection is one of the connections. Its Close gives its slot back.
type connection struct {
	net.Conn

	listener *connections
	host     string
	since    time.Time
	once     sync.Once
}

// Close implements net.Conn.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.listener.remove(c)
		<-c.listener.slots
	})
	return err
}

// host returns the address of a client without its port, and "" for a socket in the file system.
func host(conn net.Conn) string {
	addr := conn.RemoteAddr()
	if addr == nil { // of a listener that knows none
		return ""
	}
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return ""
	}
	return host
}

type connectionKey struct{}

// withConnection adds a connection to the context of its requests.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok { // a tls.Conn
		conn = secure.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}

// keep lets the connection of a request last: its client has used a right. A client that anyone can be,
// where others are identified, has none.
func keep(ctx context.Context, user *authenticationv1.UserInfo) {
	if user != nil && user.Username == anonymousUser {
		return
	}
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		c.listener.remove(c)
	}
}
