package podstream

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// fakeConn is a connection to a server that has sent all that it will.
type fakeConn struct {
	httpstream.Connection
	sent    map[string]string // by kind of stream
	failure map[string]error  // of opening a stream
	quiet   string            // the kind of a stream that stays open, on which nothing is sent

	opened  map[string]*fakeStream
	removed []httpstream.Stream
	closed  chan bool
}

func newFakeConn(sent map[string]string) *fakeConn {
	return &fakeConn{sent: sent, failure: map[string]error{}, opened: map[string]*fakeStream{}, closed: make(chan bool)}
}

func (c *fakeConn) CreateStream(headers http.Header) (httpstream.Stream, error) {
	kind := headers[corev1.StreamType][0] //nolint:staticcheck // the key is not canonical
	if err := c.failure[kind]; err != nil {
		return nil, err
	}
	s := &fakeStream{Reader: strings.NewReader(c.sent[kind]), headers: headers}
	if kind == c.quiet {
		s.Reader, _ = io.Pipe()
	}
	c.opened[kind] = s
	return s, nil
}

func (c *fakeConn) RemoveStreams(all ...httpstream.Stream) { c.removed = append(c.removed, all...) }
func (c *fakeConn) CloseChan() <-chan bool                 { return c.closed }
func (c *fakeConn) Close() error                           { return nil }
func (c *fakeConn) SetIdleTimeout(time.Duration)           {}

// fakeStream is one stream.
type fakeStream struct {
	httpstream.Stream
	io.Reader
	headers  http.Header
	written  bytes.Buffer
	err      error // of a Write or a Reset
	isClosed bool
}

func (s *fakeStream) Read(b []byte) (int, error) { return s.Reader.Read(b) }

func (s *fakeStream) Reset() error {
	if r, ok := s.Reader.(io.Closer); ok {
		_ = r.Close()
	}
	return s.err
}

func (s *fakeStream) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	return s.written.Write(b)
}

func (s *fakeStream) Close() error {
	s.isClosed = true
	return nil
}

var errLost = errors.New("connection lost")
