package server_test

import (
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/sublet-dev/agent/server"
)

// Clients without a right, with or without a request, cannot keep out one that has it. The
// connections of those who have stay. SV-6
func TestServe_StrangersGiveWay(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) { cfg.MaxConnections, cfg.MaxStreams = 4, 1 })
	first := n.client(t)
	status, _, _ := n.do(t, first, http.MethodGet, "/pods", "good")
	require.Equal(t, http.StatusOK, status)
	for _, token := range []string{"", "wrong", "other"} { // each leaves a connection that is idle for a minute
		status, _, _ := n.do(t, n.client(t), http.MethodGet, "/pods", token)
		require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, status)
	}
	waiting := dial(t, n.addr)
	late := n.client(t)
	late.Timeout = 30 * time.Second // about one will do; the others would leave after a minute
	status, _, _ = n.do(t, late, http.MethodGet, "/pods", "good")
	assert.Equal(t, http.StatusOK, status)
	status, _, _ = n.do(t, first, http.MethodGet, "/pods", "good")
	assert.Equal(t, http.StatusOK, status)
	_ = waiting.Close()
}

// Who is authenticated may have no right: the answers that a KubeAPI gives to all do not keep the connections of such clients. SV-6
func TestServe_AuthenticatedStrangersGiveWay(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) {
		cfg.MaxConnections, cfg.MaxStreams = 4, 1
		cfg.KubeAPI = kubeFunc(func(w http.ResponseWriter, r *server.KubeRequest) {
			allowed, err := r.Authorizer.Authorize(r.Context(), r.User, &authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"})
			assert.NoError(t, err)
			if !allowed {
				w.WriteHeader(http.StatusForbidden)
			}
		})
	})
	first := n.client(t)
	status, _, _ := n.do(t, first, http.MethodGet, "/api/v1/pods", "good")
	require.Equal(t, http.StatusOK, status)
	for range 3 {
		status, _, _ := n.do(t, n.client(t), http.MethodGet, "/api/v1/pods", "powerless")
		require.Equal(t, http.StatusForbidden, status)
	}
	late := n.client(t)
	late.Timeout = 30 * time.Second // as above
	status, _, _ = n.do(t, late, http.MethodGet, "/api/v1/pods", "good")
	assert.Equal(t, http.StatusOK, status)
	status, _, _ = n.do(t, first, http.MethodGet, "/api/v1/pods", "good")
	assert.Equal(t, http.StatusOK, status)
}

// pipes is a listener of connections in memory.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error { close(p.closed); return nil }

func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// from is a connection of a client with an address.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// limited is a listener with a limit of connections, which accepts all that it can.
type limited struct {
	pipes
	listener net.Listener
	accepted chan net.Conn
}

func newLimited(limit int) *limited {
	l := &limited{pipes: pipes{make(chan net.Conn), make(chan struct{})}, accepted: make(chan net.Conn, 100)}
	l.listener = server.LimitConnections(l.pipes, limit)
	go func() {
		for {
			c, err := l.listener.Accept()
			if err != nil {
				return
			}
			l.accepted <- c
		}
	}()
	return l
}

// connect returns a client's end of a connection from an address, and whether it is open.
func (l *limited) connect(t *testing.T, host string) (open func() bool) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, client)
		close(ended)
	}()
	select {
	case l.pipes.accepted <- from{server, &net.TCPAddr{IP: net.ParseIP(host), Port: 1}}:
	case <-time.After(time.Millisecond):
		t.Fatal("not accepted")
	}
	synctest.Wait()
	return func() bool {
		synctest.Wait()
		select {
		case <-ended:
			return false
		default:
			return true
		}
	}
}

// The host that has most connections without a right loses its oldest one, when that had its time.
func TestConnections_OfOneHostDoNotDisplaceOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(3)
		defer l.listener.Close()
		other := l.connect(t, "10.0.0.1")
		time.Sleep(100 * time.Millisecond)
		first, second := l.connect(t, "10.0.0.2"), l.connect(t, "10.0.0.2")
		third := l.connect(t, "10.0.0.2")
		time.Sleep(999 * time.Millisecond)
		assert.Len(t, l.accepted, 3)
		assert.True(t, first())
		time.Sleep(2 * time.Millisecond)
		assert.False(t, first())
		assert.Len(t, l.accepted, 4)
		for range 3 {
			<-l.accepted
		}
		require.NoError(t, (<-l.accepted).Close())
		assert.True(t, other())
		assert.True(t, second())
		assert.False(t, third())
		fourth := l.connect(t, "10.0.0.3")
		assert.Len(t, l.accepted, 1, "a slot is free")
		l.connect(t, "10.0.0.4")
		time.Sleep(time.Second)
		assert.False(t, other(), "the oldest of hosts with as many")
		assert.True(t, fourth())
	})
}

// Without a connection that can give way, one more waits, and the end of the listener ends it.
func TestConnections_WaitForThoseWithARight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(1)
		first := l.connect(t, "10.0.0.1")
		server.Keep(<-l.accepted)
		second := l.connect(t, "10.0.0.2")
		time.Sleep(time.Hour)
		assert.True(t, first())
		assert.True(t, second())
		assert.Empty(t, l.accepted)
		require.NoError(t, l.listener.Close())
		assert.True(t, first())
		assert.False(t, second())
	})
}
