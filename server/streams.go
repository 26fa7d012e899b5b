package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// exec runs a command in a container, with streams.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	opts, err := streamOptions(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, container := s.requestedContainer(w, r)
	if pod == nil {
		return
	}
	s.proxy(w, r, &opts, func() (*url.URL, error) {
		return s.cfg.Streams.ExecURL(r.Context(), pod, &corev1.PodExecOptions{
			Container: container, Command: q["command"], Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, TTY: opts.TTY,
		})
	})
}

// attach connects to the streams of a container's process.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	opts, err := streamOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, container := s.requestedContainer(w, r)
	if pod == nil {
		return
	}
	opts.Container = container
	// The process has a terminal or not. A runtime waits for the streams that follow from that, whatever the client asked for.
	if spec := runtime.ContainerSpec(pod, container); spec != nil {
		opts.TTY = spec.TTY
		opts.Stderr = opts.Stderr && !opts.TTY
	}
	s.proxy(w, r, &opts, func() (*url.URL, error) { return s.cfg.Streams.AttachURL(r.Context(), pod, &opts) })
}

// portForward connects to ports of a pod.
func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	opts := &corev1.PodPortForwardOptions{}
	// A client that uses SPDY names the ports in its streams.
	if wsstream.IsWebSocketRequest(r) && !wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		for _, values := range r.URL.Query()["port"] {
			for value := range strings.SplitSeq(values, ",") { // so an API server joins them
				port, err := strconv.ParseUint(value, 10, 16)
				if err != nil || port == 0 {
					http.Error(w, fmt.Sprintf("invalid port %q", value), http.StatusBadRequest)
					return
				}
				opts.Ports = append(opts.Ports, int32(port))
			}
		}
		if len(opts.Ports) == 0 {
			http.Error(w, "query parameter \"port\" is required", http.StatusBadRequest)
			return
		}
	}
	pod := s.requestedPod(w, r)
	if pod == nil {
		return
	}
	s.proxy(w, r, nil, func() (*url.URL, error) { return s.cfg.Streams.PortForwardURL(r.Context(), pod, opts) })
}

// streamOptions returns the streams that a query asks for, by the names that the API
// server uses.
func streamOptions(q url.Values) (corev1.PodAttachOptions, error) {
	opts := corev1.PodAttachOptions{Stdin: q.Get("input") == "1", Stdout: q.Get("output") == "1", Stderr: q.Get("error") == "1", TTY: q.Get("tty") == "1"}
	if opts.TTY {
		opts.Stderr = false // a terminal has one output
	}
	if !opts.Stdin && !opts.Stdout && !opts.Stderr {
		return opts, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return opts, nil
}

// proxy connects a client to the runtime's streaming server. opts are nil for
// port-forward.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request, opts *corev1.PodAttachOptions, prepare func() (*url.URL, error)) {
	if r.Header.Get("Upgrade") == "" {
		http.Error(w, "Upgrade request required", http.StatusBadRequest)
		return
	}
	done, ok := s.stream(w, r)
	if !ok {
		return
	}
	defer done()
	target, err := prepare()
	if err != nil {
		s.fail(w, r, err, http.StatusInternalServerError)
		return
	}
	client := &streamWriter{ResponseWriter: w, idle: s.cfg.StreamIdleTimeout, taken: func(conn net.Conn) {
		// A client that reads nothing must not delay the end of the server.
		context.AfterFunc(r.Context(), func() { _ = conn.Close() })
	}}
	switch {
	case opts != nil && wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
		client.split = true
		s.translate(client, r, target, opts)
	case opts == nil && wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
		s.tunnel(client, r, target)
	default:
		s.upgrade(client, r, target)
	}
}

// upgrade forwards a request to upgrade, and then what both sides send.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request, target *url.URL) {
	proxy := httputil.ReverseProxy{
		Transport: s.runtime,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = target, target.Host
			withoutCredentials(p.Out.Header)
		},
		ModifyResponse: func(response *http.Response) error {
			if response.StatusCode >= 300 && response.StatusCode < 400 {
				return fmt.Errorf("the streaming server redirects: status %d", response.StatusCode) // to where clients must not go
			}
			if conn, ok := response.Body.(io.ReadWriteCloser); ok {
				response.Body = &runtimeConn{ReadWriteCloser: conn, ended: make(chan struct{})}
			}
			return nil
		},
		ErrorHandler: s.upstreamError,
		ErrorLog:     slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(w, r)
}

// runtimeConn is a connection to the runtime for a proxy that ends when one direction has ended.
//
// It has no CloseWrite: the proxy would wait for the other half when a client is gone, and a runtime
// keeps that open for as long as a command lasts that it does not end. And a Write that fails, as when a
// command has ended before it read its stdin, returns after the last Read: that has the exit code.
type runtimeConn struct {
	io.ReadWriteCloser
	end   sync.Once
	ended chan struct{} // closed when a Read has failed, and by Close
}

func (c *runtimeConn) ends() { c.end.Do(func() { close(c.ended) }) }

// Read implements io.Reader.
func (c *runtimeConn) Read(b []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(b)
	if err != nil {
		c.ends()
	}
	return n, err
}

// Write implements io.Writer.
func (c *runtimeConn) Write(b []byte) (int, error) {
	n, err := c.ReadWriteCloser.Write(b)
	if err != nil {
		<-c.ended
	}
	return n, err
}

// Close implements io.Closer.
func (c *runtimeConn) Close() error {
	c.ends()
	return c.ReadWriteCloser.Close()
}

// upstreamError responds without the error, which contains the streaming server's address.
func (s *Server) upstreamError(w http.ResponseWriter, r *http.Request, err error) {
	s.cfg.Logger.LogAttrs(r.Context(), slog.LevelWarn, "stream to the runtime failed", slog.String("path", r.URL.Path), logattr.Err(err))
	http.Error(w, "the streaming server of the runtime failed", http.StatusBadGateway)
}

// withoutCredentials removes what authenticated a client to this server.
func withoutCredentials(h http.Header) {
	for _, name := range []string{"Authorization", "Cookie"} {
		h.Del(name)
	}
}

// runtimeTransport connects to streaming servers of the runtime. They listen on this
// machine, with self-signed certificates if they have any: their URL is the
// secret, and it came from the runtime.
func runtimeTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		DisableKeepAlives: true, DisableCompression: true,
	}
}

// streamWriter closes the connection that a stream took over when nothing was read or
// written for the idle timeout.
type streamWriter struct {
	http.ResponseWriter
	idle  time.Duration
	taken func(net.Conn) // is called with the connection
	split bool           // messages of channels, of a WebSocket
}

func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker.
func (w *streamWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.taken(conn)
	idle := &idleConn{Conn: conn, idle: w.idle}
	idle.used()
	if n := rw.Reader.Buffered(); n > 0 {
		first, _ := rw.Peek(n) // n bytes are there
		idle.first = append([]byte(nil), first...)
	}
	client := net.Conn(idle)
	if w.split {
		client = &frameSplitter{Conn: idle}
	}
	return client, bufio.NewReadWriter(bufio.NewReader(client), bufio.NewWriter(client)), nil
}

// idleConn has a deadline that each successful read or write extends.
type idleConn struct {
	net.Conn
	idle  time.Duration
	first []byte // read before the connection was taken over
}

func (c *idleConn) used() { _ = c.SetDeadline(time.Now().Add(c.idle)) }

// Read implements net.Conn.
func (c *idleConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.used()
	}
	return n, err
}

// Write implements net.Conn.
func (c *idleConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.used()
	}
	return n, err
}
