package podstream_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/sublet-dev/agent/podstream"
)

// errTired is why a caller gives up.
var errTired = errors.New("tired")

var nodeURL = &url.URL{Scheme: "http", Host: "node:1", Path: "/exec/secret"}

// receive returns what comes at once. Its time limit is only for a test that fails.
func receive[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(time.Minute):
		require.Fail(t, "no "+what)
	}
	return v
}

// calls are those that connect, by name.
var calls = map[string]func(context.Context, *podstream.Client, *url.URL) error{
	"Stream": func(ctx context.Context, c *podstream.Client, u *url.URL) error {
		return c.Stream(ctx, u, podstream.Options{Stdout: io.Discard})
	},
	"PortForward": func(ctx context.Context, c *podstream.Client, u *url.URL) error {
		f, err := c.PortForward(ctx, u)
		if err == nil {
			_ = f.Close()
		}
		return err
	},
}

// A server that accepts and never answers delays no one: the end of ctx disconnects.
func TestClient_ServerNeverAnswers(t *testing.T) {
	for _, scheme := range []string{"http", "https"} {
		for name, call := range calls {
			t.Run(scheme+" "+name, func(t *testing.T) {
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				defer listener.Close()
				asked, disconnected := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(disconnected)
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					defer conn.Close()
					_, _ = conn.Read(make([]byte, 1))
					close(asked)
					_, _ = io.Copy(io.Discard, conn)
				}()
				ctx, cancel := context.WithCancelCause(t.Context())
				ended := make(chan error, 1)
				go func() {
					ended <- call(ctx, new(podstream.Client), &url.URL{Scheme: scheme, Host: listener.Addr().String(), Path: "/exec/secret"})
				}()
				receive(t, asked, "request")
				cancel(errTired)
				assert.Equal(t, errTired, receive(t, ended, "error"))
				receive(t, disconnected, "end of the connection")
			})
		}
	}
}

// onPipe returns a client of a server that gets the other end of a pipe, which buffers nothing.
func onPipe(serve func(net.Conn)) *podstream.Client {
	return &podstream.Client{DialContext: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go serve(server)
		return client, nil
	}}
}

// answer reads a request and answers it.
func answer(conn net.Conn, text string) {
	if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
		_, _ = io.WriteString(conn, text)
	}
}

const upgraded = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"

// A connection that comes when ctx is done already is closed too.
func TestClient_DialsTooLate(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				client, server := net.Pipe()
				c := &podstream.Client{DialContext: func(context.Context, string, string) (net.Conn, error) {
					cancel(errTired)
					synctest.Wait()
					return client, nil
				}}
				ended := make(chan error, 1)
				go func() { ended <- call(ctx, c, nodeURL) }()
				n, err := io.Copy(io.Discard, server)
				require.NoError(t, err)
				assert.Zero(t, n)
				assert.Equal(t, errTired, <-ended)
			})
		})
	}
}

// A server that does not upgrade is disconnected, although it would wait for a next request.
func TestClient_ServerDoesNotUpgrade(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			disconnected := make(chan error, 1)
			c := onPipe(func(conn net.Conn) {
				defer conn.Close()
				answer(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nnot yours")
				_, err := conn.Read(make([]byte, 1))
				disconnected <- err
			})
			require.ErrorContains(t, call(t.Context(), c, nodeURL), "not yours")
			require.ErrorIs(t, receive(t, disconnected, "end of the connection"), io.EOF)
		})
	}
}

// pausingServer upgrades, opens a number of streams, and then reads nothing until it is
// resumed.
type pausingServer struct {
	streams         int32
	paused, resumed chan struct{}
	disconnected    chan struct{} // closed when it has read the end
}

func newPausingServer(streams int32) *pausingServer {
	return &pausingServer{streams, make(chan struct{}), make(chan struct{}), make(chan struct{})}
}

func (s *pausingServer) serve(conn net.Conn) {
	defer close(s.disconnected)
	defer conn.Close()
	answer(conn, upgraded)
	var opened atomic.Int32
	streams, err := spdy.NewServerConnection(pausingConn{conn, s}, func(stream httpstream.Stream, replySent <-chan struct{}) error {
		go func() { _, _ = io.Copy(io.Discard, stream) }() // what came before the pause must not keep the end from being read
		go func() {
			if <-replySent; opened.Add(1) == s.streams {
				close(s.paused)
			}
		}()
		return nil
	})
	if err == nil {
		<-streams.CloseChan()
		_ = streams.Close()
	}
}

type pausingConn struct {
	net.Conn
	s *pausingServer
}

func (c pausingConn) Read(b []byte) (int, error) {
	select {
	case <-c.s.paused:
		<-c.s.resumed
	default:
	}
	return c.Conn.Read(b)
}

// endless is an input without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// A server that stops reading blocks the input, but not the end of ctx.
func TestClient_ServerStopsReading(t *testing.T) {
	server := newPausingServer(4)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- onPipe(server.serve).Stream(ctx, nodeURL, podstream.Options{Stdin: endless{}, Stdout: io.Discard, Stderr: io.Discard})
	}()
	receive(t, server.paused, "streams")
	cancel(errTired)
	assert.Equal(t, errTired, receive(t, ended, "error"))
	close(server.resumed)
	receive(t, server.disconnected, "end of the connection")
}

// Close does not wait for what the server does not read.
func TestForwarder_ServerStopsReading(t *testing.T) {
	server := newPausingServer(2)
	f, err := onPipe(server.serve).PortForward(t.Context(), nodeURL)
	require.NoError(t, err)
	conn, err := f.Dial(80)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := io.Copy(conn, endless{})
		assert.Error(t, err)
	})
	receive(t, server.paused, "streams")
	ended := make(chan error, 1)
	go func() { ended <- f.Close() }()
	require.NoError(t, receive(t, ended, "end of Close"))
	receive(t, f.Done(), "end of the connection")
	wg.Wait()
	close(server.resumed)
	receive(t, server.disconnected, "end of the connection")
}

// readsOnly upgrades and reads, but opens no stream.
func readsOnly(conn net.Conn) {
	defer conn.Close()
	answer(conn, upgraded)
	_, _ = io.Copy(io.Discard, conn)
}

// A stream that the server does not open is not waited for once ctx is done.
func TestClient_ServerOpensNoStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errTired) })
		startTime := time.Now()
		assert.Equal(t, errTired, onPipe(readsOnly).Stream(ctx, nodeURL, podstream.Options{Stdout: io.Discard}))
		assert.Equal(t, time.Second, time.Since(startTime))
		time.Sleep(time.Minute) // the library waits on in the background
	})
}

func TestForwarder_ServerOpensNoStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := onPipe(readsOnly).PortForward(t.Context(), nodeURL)
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { assert.NoError(t, f.Close()) })
		startTime := time.Now()
		_, err = f.Dial(80)
		require.ErrorContains(t, err, "open stream to port 80: ")
		assert.Equal(t, time.Second, time.Since(startTime))
		time.Sleep(time.Minute) // the library waits on in the background
	})
}

// Serve ends with its context, although the server opens no stream for a client.
func TestForwarder_ServeEndsWhileDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := onPipe(readsOnly).PortForward(t.Context(), nodeURL)
		require.NoError(t, err)
		listener := bufconn.Listen(1)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		go func() {
			client, err := listener.Dial()
			assert.NoError(t, err)
			t.Cleanup(func() { _ = client.Close() })
		}()
		startTime := time.Now()
		require.NoError(t, f.Serve(ctx, listener, 80, func(err error) { assert.Fail(t, "reported", "%v", err) }))
		assert.Equal(t, time.Second, time.Since(startTime))
		time.Sleep(time.Minute) // the library waits on in the background
		require.NoError(t, f.Close())
	})
}

// A server that sends a status without an end does not block the end of ctx.
func TestClient_ServerSendsEndlessStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := onPipe(func(conn net.Conn) {
			defer conn.Close()
			answer(conn, upgraded)
			opened := make(chan httpstream.Stream, 2)
			streams, err := spdy.NewServerConnection(conn, func(s httpstream.Stream, replySent <-chan struct{}) error {
				if opened <- s; len(opened) == cap(opened) { // only then, so that no reply waits
					go func() { <-replySent; _, _ = io.Copy(<-opened, endless{}) }()
				}
				return nil
			})
			if err == nil {
				<-streams.CloseChan()
				_ = streams.Close()
			}
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Stream(ctx, nodeURL, podstream.Options{Stdout: io.Discard}) }()
		synctest.Wait()
		cancel(errTired)
		assert.Equal(t, errTired, <-ended)
	})
}

// The certificate of a server is verified, also without a TLS configuration.
func TestClient_VerifiesServers(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not yours", http.StatusForbidden)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			for _, dial := range []func(context.Context, string, string) (net.Conn, error){nil, new(net.Dialer).DialContext} {
				var unknown x509.UnknownAuthorityError
				require.ErrorAs(t, call(t.Context(), &podstream.Client{DialContext: dial}, u), &unknown)
				c := &podstream.Client{DialContext: dial, TLS: &tls.Config{RootCAs: trusted}}
				require.ErrorContains(t, call(t.Context(), c, u), "not yours")
			}
		})
	}
}
