package podstream

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadStatus(t *testing.T) {
	for name, c := range map[string]struct{ text, status, err string }{
		"success":           {`{"status":"Success"}`, "", ""},
		"exit code":         {`{"status":"Failure","reason":"NonZeroExitCode","message":"m","details":{"causes":[{"reason":"x","message":"3"},{"reason":"ExitCode","message":"7"}]}}`, "command terminated with exit code 7", ""},
		"no exit code":      {`{"status":"Failure","reason":"NonZeroExitCode","message":"killed"}`, "killed", ""},
		"bad exit code":     {`{"status":"Failure","reason":"NonZeroExitCode","message":"killed","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}`, "killed", ""},
		"other reason":      {`{"status":"Failure","reason":"InternalError","message":"no shell","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}`, "no shell", ""},
		"nothing":           {``, "", "the connection was closed before the process has ended: unexpected EOF"},
		"what is no status": {`x`, "", "decode status of the process"},
	} {
		t.Run(name, func(t *testing.T) {
			status, err := readStatus(strings.NewReader(c.text))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			if c.status == "" {
				assert.NoError(t, status)
			} else {
				assert.EqualError(t, status, c.status)
			}
		})
	}
	_, err := readStatus(io.MultiReader(strings.NewReader(`{"status":"Success"}`), iotest.ErrReader(errLost)))
	require.ErrorIs(t, err, errLost, "what came may be incomplete")
}

func TestOpenStreams(t *testing.T) {
	all := Options{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard}
	tty := all
	tty.TTY = true
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{Options{}, []string{"error"}}, {all, []string{"error", "stderr", "stdin", "stdout"}}, {tty, []string{"error", "resize", "stdin", "stdout"}},
	} {
		conn := newFakeConn(nil)
		_, err := openStreams(conn, c.o)
		require.NoError(t, err)
		assert.Equal(t, c.want, slices.Sorted(maps.Keys(conn.opened)))
	}
	conn := newFakeConn(nil)
	conn.failure["stdin"] = errLost
	err := stream(t.Context(), conn, all)
	require.ErrorIs(t, err, errLost)
	require.ErrorContains(t, err, "open stream: ")
	assert.NotContains(t, conn.opened, "stdout", "the first failure ends it")
}

// How a process has ended is an error also if its output is complete.
func TestStream_WithoutStatus(t *testing.T) {
	var out strings.Builder
	err := stream(t.Context(), newFakeConn(map[string]string{"stdout": "text"}), Options{Stdout: &out})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Equal(t, "text", out.String())
}

func TestSendSizes(t *testing.T) {
	sizes := make(chan TerminalSize, 3)
	sizes <- TerminalSize{80, 24}
	sizes <- TerminalSize{100, 50}
	close(sizes)
	to := &fakeStream{}
	sendSizes(t.Context(), to, sizes)
	assert.Equal(t, "{\"Width\":80,\"Height\":24}\n{\"Width\":100,\"Height\":50}\n", to.written.String())
	assert.True(t, to.isClosed)

	lost, more := &fakeStream{err: errLost}, make(chan TerminalSize, 2)
	more <- TerminalSize{80, 24}
	more <- TerminalSize{100, 50}
	sendSizes(t.Context(), lost, more)
	assert.Len(t, more, 1, "it ends with the first failure")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sendSizes(ctx, &fakeStream{}, nil)
}

func TestForwarder_Dial(t *testing.T) {
	conn := newFakeConn(map[string]string{"data": "hello"})
	f := &Forwarder{conn: conn}
	c, err := f.Dial(8080)
	require.NoError(t, err)
	data, failure := conn.opened["data"], conn.opened["error"]
	for _, s := range []*fakeStream{data, failure} {
		assert.Equal(t, [][]string{{"8080"}, {"1"}}, [][]string{s.headers["port"], s.headers["requestID"]}) //nolint:staticcheck // the keys are not canonical
	}
	assert.True(t, failure.isClosed)
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(b))
	_, err = c.Write([]byte("request"))
	require.NoError(t, err)
	assert.Equal(t, "request", data.written.String())
	assert.False(t, data.isClosed)
	require.NoError(t, c.CloseWrite())
	assert.True(t, data.isClosed)
	failure.err = errLost
	require.ErrorIs(t, c.Close(), errLost)
	assert.Len(t, conn.removed, 2, "the connection forgets its streams")

	for _, kind := range []string{"error", "data"} {
		conn := newFakeConn(nil)
		conn.failure[kind] = errLost
		_, err := (&Forwarder{conn: conn}).Dial(80)
		require.ErrorIs(t, err, errLost)
		require.ErrorContains(t, err, "open stream to port 80: ")
		assert.Len(t, conn.removed, len(conn.opened), "none is left open")
	}
}

// A server that is quick closes a stream before it is open.
func TestForwarder_DialToAClosedPort(t *testing.T) {
	conn := newFakeConn(map[string]string{"error": "connection refused"})
	conn.failure["data"] = errLost
	_, err := (&Forwarder{conn: conn}).Dial(80)
	require.EqualError(t, err, "forward port 80: connection refused")
}

func TestConn_Read(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed, err := (&Forwarder{conn: newFakeConn(map[string]string{"error": "connection refused"})}).Dial(80)
		require.NoError(t, err)
		_, err = closed.Read(make([]byte, 9))
		require.EqualError(t, err, "forward port 80: connection refused")

		// Data that comes with the end is not lost, and a reason that does not come is not waited for long.
		hung := &Conn{data: &fakeStream{Reader: iotest.DataErrReader(strings.NewReader("last"))}, failed: make(chan struct{})}
		n, err := hung.Read(make([]byte, 9))
		require.NoError(t, err)
		assert.Equal(t, 4, n)
		start := time.Now()
		_, err = hung.Read(make([]byte, 9))
		require.ErrorIs(t, err, io.EOF)
		assert.Equal(t, errorTimeout, time.Since(start))
	})
}

func TestForwarder_Serve(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return l
	}
	serve := func(f *Forwarder, l net.Listener, failed func(error)) (<-chan error, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		done := make(chan error, 1)
		go func() { done <- f.Serve(ctx, l, 80, failed) }()
		return done, cancel
	}

	conn := newFakeConn(nil)
	conn.failure["error"] = errLost
	failures, l := make(chan error, 1), listen()
	done, _ := serve(&Forwarder{conn: conn}, l, func(err error) { failures <- err })
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	require.ErrorIs(t, <-failures, errLost)
	_, err = client.Read(make([]byte, 1))
	require.Error(t, err, "the client is disconnected")
	close(conn.closed)
	require.EqualError(t, <-done, "the connection to the pod was lost")

	l = listen()
	require.NoError(t, l.Close())
	done, _ = serve(&Forwarder{conn: newFakeConn(nil)}, l, nil)
	require.ErrorContains(t, <-done, "accept connection: ")
	done, cancel := serve(&Forwarder{conn: newFakeConn(nil)}, listen(), nil)
	cancel()
	require.NoError(t, <-done)
}

// A client that is gone ends the connection to the pod, although the pod sends nothing.
func TestForwarder_ClientIsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := newFakeConn(nil)
		conn.quiet = "data"
		client, peer := net.Pipe()
		defer peer.Close()
		err := (&Forwarder{conn: conn}).forward(t.Context(), resetConn{client}, 80)
		require.ErrorIs(t, err, io.ErrClosedPipe)
		assert.Len(t, conn.removed, 4, "both streams, by both who close them")
	})
}

// resetConn is a connection whose other end has reset it.
type resetConn struct{ net.Conn }

func (resetConn) Read([]byte) (int, error) { return 0, errLost }

func TestClient_Dials(t *testing.T) {
	var address string
	c := Client{DialContext: func(_ context.Context, _, a string) (net.Conn, error) {
		address = a
		return nil, errLost
	}}
	_, err := c.PortForward(t.Context(), &url.URL{Scheme: "http", Host: "node:1", Path: "/secret"})
	require.ErrorIs(t, err, errLost)
	assert.Equal(t, "node:1", address)
	_, err = c.PortForward(t.Context(), &url.URL{Scheme: "http", Host: "a b", Path: "/secret"})
	require.EqualError(t, err, "invalid URL of a streaming server")
	assert.Equal(t, errLost, withoutURL(&url.Error{Op: http.MethodPost, URL: "http://node/secret", Err: errLost}))
}
