package embedded

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/sleep"
)

const (
	// maxForwarded is the number of connections of one host port, each with two descriptors
	// of this process. A further one waits until one of them ends. If nothing has passed
	// through some of them for minForwardedIdle, the one that is idle for longest is closed
	// for it, so that clients that are silent or do not read cannot block a port. While a
	// port has fewer, its connections may be idle for any time.
	maxForwarded = 512
	// minForwardedIdle is the time without traffic after which a connection may be closed
	// for another one.
	minForwardedIdle = 30 * time.Second
)

// Pauses after a connection that could not be accepted, as in net/http.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// accept forwards the connections of one port until its listener is closed.
func (h *hostPorts) accept(lis net.Listener, port int32) {
	f := &forwarder{h: h, port: port, start: time.Now(), conns: map[*forwarded]struct{}{}, ended: make(chan struct{}, 1)}
	var pause time.Duration
	for {
		conn, err := lis.Accept()
		if err == nil {
			pause = 0
			c, err := f.admit()
			if err != nil {
				_ = conn.Close() // it was not served
				return
			}
			h.wg.Go(func() {
				defer f.release(c)
				f.serve(c, conn)
			})
			continue
		}
		switch {
		case errors.Is(err, net.ErrClosed) || h.ctx.Err() != nil:
			return
		case pause == 0: // no descriptors are left, for example
			h.log.Warn("connection to a host port not accepted", slog.String("address", lis.Addr().String()), logattr.Err(err))
		}
		pause = min(max(2*pause, minAcceptPause), maxAcceptPause)
		if sleep.For(h.ctx, pause) != nil {
			return
		}
	}
}

// forwarder forwards the connections of one host port.
type forwarder struct {
	h     *hostPorts
	port  int32
	start time.Time
	ended chan struct{} // has a token after one of conns has ended

	mu    sync.Mutex // guards the rest
	conns map[*forwarded]struct{}
}

// forwarded is one connection.
type forwarded struct {
	ctx    context.Context
	end    context.CancelFunc
	usedAt atomic.Int64 // when something last passed through it; of forwarder.now
}

// now returns a time that does not change with the clock of the machine.
func (f *forwarder) now() time.Duration { return time.Since(f.start) }

// admit makes room for a connection. It fails when the ports are closed meanwhile.
func (f *forwarder) admit() (*forwarded, error) {
	for {
		c, wait := f.tryAdmit()
		if c != nil {
			return c, nil
		}
		ctx, cancel := context.WithTimeout(f.h.ctx, wait)
		select {
		case <-f.ended:
		case <-ctx.Done():
		}
		cancel()
		if err := f.h.ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// tryAdmit makes room for a connection, or returns the time until one may be idle for long
// enough.
func (f *forwarder) tryAdmit() (*forwarded, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.conns) >= maxForwarded {
		var idlest *forwarded
		for c := range f.conns {
			if idlest == nil || c.usedAt.Load() < idlest.usedAt.Load() {
				idlest = c
			}
		}
		if wait := minForwardedIdle - (f.now() - time.Duration(idlest.usedAt.Load())); wait > 0 {
			return nil, wait
		}
		f.h.log.Debug("idle connection to a host port closed for another one", slog.Int("containerPort", int(f.port)))
		idlest.end()
		delete(f.conns, idlest)
	}
	c := new(forwarded)
	c.ctx, c.end = context.WithCancel(f.h.ctx)
	c.usedAt.Store(int64(f.now()))
	f.conns[c] = struct{}{}
	return c, 0
}

// release is called when a connection has ended.
func (f *forwarder) release(c *forwarded) {
	c.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
	notify.Send(f.ended)
}

// serve forwards one connection. Each direction ends by itself.
func (f *forwarder) serve(c *forwarded, out net.Conn) {
	in, err := f.h.dial(c.ctx, f.port)
	if err != nil {
		_ = out.Close() // the pod does not accept it
		return
	}
	defer context.AfterFunc(c.ctx, func() { _, _ = in.Close(), out.Close() })()
	var wg sync.WaitGroup
	wg.Go(func() { f.pass(c, in, out) })
	f.pass(c, out, in)
	wg.Wait()
	_, _ = in.Close(), out.Close()
}

// pass copies until from ends, and closes the write half of to.
func (f *forwarder) pass(c *forwarded, to, from net.Conn) {
	_, _ = io.Copy(writerFunc(func(b []byte) (int, error) {
		n, err := to.Write(b)
		c.usedAt.Store(int64(f.now()))
		return n, err
	}), from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = to.Close()
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }
