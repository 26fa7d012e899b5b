package runtimetest

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

const spdyPortForwardProtocol = "portforward.k8s.io"

// streamTimeout bounds one stream.
const streamTimeout = 20 * time.Second

// streamDeadline returns when a stream that is opened now is to have ended.
func (c *CaseT) streamDeadline() time.Time {
	return time.Now().Add(c.allow(streamTimeout + c.s.reserve))
}

// dialStream connects to the streaming server of the runtime.
func (s *suite) dialStream(ctx context.Context, u *url.URL) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout+s.reserve)
	defer cancel()
	switch {
	case s.dial != nil:
		return s.dial(ctx, u.Host)
	case u.Scheme == "https":
		return new(tls.Dialer).DialContext(ctx, "tcp", u.Host)
	default:
		return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	}
}

// bufferedConn is a connection with bytes that were read ahead.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// openSPDY upgrades a connection to a URL of the streaming server as kubectl did before
// it used WebSockets, or ends the case.
func (c *CaseT) openSPDY(address, protocol, what string) httpstream.Connection {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		c.fatal("%s: the runtime returned the URL %q, which names no server", what, address)
	}
	conn, err := c.s.dialStream(c.ctx, u)
	if err != nil {
		c.fatal("%s: the streaming server of the runtime does not answer at the URL that it returned: %v", what, err)
	}
	context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	c.ok(conn.SetDeadline(c.streamDeadline()), what)
	up, err := upgrade(c.ctx, conn, u, protocol)
	if err != nil {
		c.fatal("%s: the streaming server of the runtime refuses SPDY: %v", what, err)
	}
	context.AfterFunc(c.ctx, func() { _ = up.Close() }) // with its streams, of which some may not have been read
	return up
}

// upgrade makes a SPDY connection of one of HTTP.
func upgrade(ctx context.Context, conn net.Conn, u *url.URL, protocol string) (httpstream.Connection, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "SPDY/3.1")
	req.Header.Set(httpstream.HeaderProtocolVersion, protocol)
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("status %s", resp.Status)
	}
	if got := resp.Header.Get(httpstream.HeaderProtocolVersion); got != protocol {
		return nil, fmt.Errorf("protocol %q, want %q", got, protocol)
	}
	return spdy.NewClientConnection(bufferedConn{conn, r})
}

// spdySession has the streams of a command or of a container, each nil if it was not
// requested.
type spdySession struct {
	c                               *CaseT
	what                            string
	conn                            httpstream.Connection
	in, out, errOut, result, resize httpstream.Stream
}

// streamSet is the streams of a session besides the output and the result.
type streamSet struct{ in, errOut, tty bool }

func (c *CaseT) openSession(address string, w streamSet, what string) *spdySession {
	s := &spdySession{c: c, what: what, conn: c.openSPDY(address, commandProtocol, what)}
	s.result, s.out = s.open("error", true), s.open("stdout", true)
	s.in, s.errOut, s.resize = s.open("stdin", w.in), s.open("stderr", w.errOut), s.open("resize", w.tty)
	return s
}

func (s *spdySession) open(kind string, requested bool) httpstream.Stream {
	if !requested {
		return nil
	}
	st, err := s.conn.CreateStream(http.Header{"streamType": {kind}})
	s.c.ok(err, s.what+": open stream "+kind)
	return st
}

// send writes to standard input.
func (s *spdySession) send(text string) {
	_, err := io.WriteString(s.in, text)
	s.c.ok(err, s.what+": send input")
}

// size sets the size of the terminal.
func (s *spdySession) size(width, height uint16) {
	s.c.ok(json.NewEncoder(s.resize).Encode(map[string]uint16{"Width": width, "Height": height}), s.what+": resize the terminal")
}

// readResult reads the result of a command, or ends the case.
func (s *spdySession) readResult(of string) string {
	text := s.read(s.result, "the result of "+of)
	if text == "" {
		s.c.fatal("%s: the streams ended without the result of %s", s.what, of)
	}
	return text
}

// read reads a stream to its end.
func (s *spdySession) read(st httpstream.Stream, name string) string {
	b, err := io.ReadAll(st)
	if err != nil {
		s.c.fatal("%s: %s does not end, after %q: %v", s.what, name, b, err)
	}
	return string(b)
}

// exchange sends a request to a forwarded port, ends its half, and returns what the pod
// answers.
func exchange(conn httpstream.Connection, port int32, request string) (string, error) {
	open := func(kind string) (httpstream.Stream, error) {
		return conn.CreateStream(http.Header{"streamType": {kind}, "port": {strconv.Itoa(int(port))}, "requestID": {"1"}})
	}
	failure, err := open("error")
	if err != nil {
		return "", err
	}
	_ = failure.Close() // the client writes nothing to it
	data, err := open("data")
	if err != nil {
		return "", err
	}
	_, werr := io.WriteString(data, request)
	werr = errors.Join(werr, data.Close())
	b, derr := io.ReadAll(data)
	text, ferr := io.ReadAll(failure)
	if len(text) > 0 {
		return string(b), errors.New(string(text))
	}
	return string(b), errors.Join(werr, derr, ferr)
}
