package cristream

import (
	"context"
	"errors"
	"net"
	"os"
)

// A client that is only attached to the output sends nothing, and is not noticed to be gone before the
// container writes. Its connection is: the library reads it for as long as the stream is open.

// Listener makes connections that notice their end.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{Conn: c}, nil
}

// connection is one with a client.
type connection struct {
	net.Conn
	open context.Context //nolint:containedctx // it is what lives until the connection ends
	lose context.CancelFunc
}

// Read implements net.Conn. net/http interrupts a read by a deadline before it hands a connection over.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.lose()
	}
	return n, err
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.lose()
	return c.Conn.Close()
}

// connectionKey is the key of the connection in the context of a request.
type connectionKey struct{}

// WithConnection is http.Server.ConnContext, which is called before the connection is used.
func WithConnection(ctx context.Context, c net.Conn) context.Context {
	if conn, ok := c.(*connection); ok {
		conn.open, conn.lose = context.WithCancel(ctx)
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

// WhileConnected returns a context that also ends when the client of a request has gone, from the
// context of a request to an http.Server with a Listener and WithConnection.
func WhileConnected(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	c, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return ctx, cancel
	}
	stop := context.AfterFunc(c.open, cancel)
	return ctx, func() { stop(); cancel() }
}
