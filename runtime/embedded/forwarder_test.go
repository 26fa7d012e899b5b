package embedded

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// portClients opens connections to a host port.
type portClients struct {
	accepted chan net.Conn // by the port
	dialed   chan net.Conn // the ends of the pod, in order
}

// newPortClients serves a host port until the end of the test.
func newPortClients(t *testing.T) *portClients {
	t.Helper()
	p := &portClients{make(chan net.Conn), make(chan net.Conn, 4*maxForwarded)}
	h, _ := newHostPorts(t, func(context.Context, int32) (net.Conn, error) {
		pod, conn := net.Pipe()
		p.dialed <- pod
		return conn, nil
	})
	h.wg.Go(func() {
		h.accept(fakeListener{accept: func() (net.Conn, error) {
			select {
			case conn := <-p.accepted:
				return conn, nil
			case <-h.ctx.Done():
				return nil, net.ErrClosed
			}
		}}, 80)
	})
	return p
}

// open opens a connection. It does not wait until it is served.
func (p *portClients) open() net.Conn {
	client, conn := net.Pipe()
	p.accepted <- conn
	synctest.Wait()
	return client
}

// isClosed reports whether the port has closed a connection on which nothing was sent.
func isClosed(client net.Conn) bool {
	_ = client.SetReadDeadline(time.Now().Add(time.Nanosecond)) // fails if it is closed
	_, err := client.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func TestForwarder_ReplacesAnIdleConnection(t *testing.T) {
	send := func(t *testing.T, from, to net.Conn) {
		go func() { _, _ = io.WriteString(from, "x") }()
		_, err := io.ReadFull(to, make([]byte, 1))
		require.NoError(t, err)
	}
	for name, tc := range map[string]struct {
		use    func(t *testing.T, client, pod net.Conn) // of the first connection, after ten seconds
		closed int
	}{
		"the oldest one":                  {func(*testing.T, net.Conn, net.Conn) {}, 0},
		"not one whose client sends":      {func(t *testing.T, client, pod net.Conn) { send(t, client, pod) }, 1},
		"not one whose client is sent to": {func(t *testing.T, client, pod net.Conn) { send(t, pod, client) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPortClients(t)
				clients := make([]net.Conn, maxForwarded)
				for i := range clients {
					clients[i] = p.open()
					time.Sleep(time.Millisecond)
				}
				start := time.Now()
				require.Len(t, p.dialed, maxForwarded)
				time.Sleep(10 * time.Second)
				tc.use(t, clients[0], <-p.dialed)
				synctest.Wait() // until its use is recorded

				p.open()
				since := start.Add(time.Duration(tc.closed-maxForwarded) * time.Millisecond)
				time.Sleep(time.Until(since.Add(minForwardedIdle - time.Nanosecond)))
				require.Len(t, p.dialed, maxForwarded-1, "the new one waits")
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.Len(t, p.dialed, maxForwarded, "the new one is served")
				for i := range 3 {
					assert.Equal(t, i == tc.closed, isClosed(clients[i]), i)
				}
			})
		})
	}
}

// Silent clients that take all connections again and again delay others only.
func TestForwarder_ServesAmongSilentClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPortClients(t)
		start := time.Now()
		for range 4 * maxForwarded {
			p.open()
		}
		assert.Equal(t, 3*minForwardedIdle, time.Since(start))
	})
}

func TestForwarder_KeepsIdleConnectionsWhileThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPortClients(t)
		client := p.open()
		for range maxForwarded - 1 {
			p.open()
		}
		time.Sleep(24 * time.Hour)
		assert.False(t, isClosed(client))
	})
}
