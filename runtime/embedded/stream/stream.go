// Package stream serves exec, attach and port-forward of an embedded runtime, by SPDY
// and by WebSocket, for crictl and kubelets. It is a separate package so that only its
// users link its dependencies.
//
//	server, err := stream.New(rt, listener) // before rt is used
//	if err != nil {
//		return err
//	}
//	go server.Run(ctx)
package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/internal/cristream"
)

// Server serves the URLs that Exec, Attach and PortForward return. A URL is valid for
// one use within a minute, and is the only authorization: listen on the loopback.
type Server struct {
	rt   *embedded.Runtime
	lis  net.Listener
	http *http.Server

	stop chan struct{} // closed when the streams in progress must end

	mu      sync.Mutex     // guards stopped, and live against additions after it
	stopped bool           // no stream begins any more
	live    sync.WaitGroup // goroutines that end the streams in progress
}

// New returns a server for rt on lis, which it owns, and sets it as rt's streaming
// server. It serves nothing before Run.
func New(rt *embedded.Runtime, lis net.Listener) (*Server, error) {
	s := &Server{rt: rt, lis: lis, stop: make(chan struct{})}
	cfg := streaming.DefaultConfig
	cfg.BaseURL = &url.URL{Scheme: "http", Host: lis.Addr().String()}
	handler, err := streaming.NewServer(cfg, &backend{s})
	if err != nil {
		return nil, fmt.Errorf("streaming server: %w", err)
	}
	s.http = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ConnContext: cristream.WithConnection}
	rt.SetStreamingServer(cristream.Server{Server: handler})
	return s, nil
}

// closeTimeout bounds the wait for a client that does not close its half of a forwarded
// connection after the pod has closed the other.
const closeTimeout = time.Second

// Run serves until ctx ends, which also ends the streams in progress. Run it once.
func (s *Server) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.close)()
	err := s.http.Serve(cristream.Listener{Listener: s.lis})
	s.close()
	s.live.Wait()
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve streams: %w", err)
}

// close ends all streams, and those that begin later.
func (s *Server) close() {
	s.mu.Lock()
	if !s.stopped {
		s.stopped = true
		close(s.stop)
	}
	s.mu.Unlock()
	_ = s.http.Close() // its connections are closed either way
}

// begin binds a stream to the lifetime of the server.
func (s *Server) begin(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped { // net/http does not wait for handlers that took over their connection
		cancel()
		return ctx, cancel
	}
	s.live.Add(1)
	done := make(chan struct{})
	go func() {
		defer s.live.Done()
		select {
		case <-s.stop:
			cancel()
		case <-done:
		}
	}()
	return ctx, func() {
		cancel()
		close(done)
	}
}

// backend is the runtime for the streaming library.
type backend struct{ *Server }

// open returns the streams that the client opened.
func open(id string, in io.Reader, out, errOut io.WriteCloser, tty bool) (string, embedded.IO) {
	id, s := cristream.Open(id, in, out, errOut)
	return id, embedded.IO{Stdin: s.In, Stdout: s.Out, Stderr: s.ErrOut, TTY: tty}
}

// Exec implements streaming.Runtime.
func (b *backend) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, end := b.begin(ctx)
	defer end()
	id, sio := open(id, in, out, errOut, tty)
	code, err := b.rt.ExecStreams(ctx, id, embedded.Exec{Cmd: cmd, IO: sio, Resize: cristream.Sizes[embedded.TerminalSize](ctx, resize)})
	if err != nil {
		return err
	}
	if code != 0 {
		return cristream.ExitError(code)
	}
	return nil
}

// Attach implements streaming.Runtime.
func (b *backend) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, leave := cristream.WhileConnected(ctx)
	defer leave()
	ctx, end := b.begin(ctx)
	defer end()
	id, sio := open(id, in, out, errOut, tty)
	return b.rt.AttachStreams(ctx, id, sio, cristream.Sizes[embedded.TerminalSize](ctx, resize))
}

// PortForward implements streaming.Runtime.
func (b *backend) PortForward(ctx context.Context, sandboxID string, port int32, client io.ReadWriteCloser) error {
	ctx, end := b.begin(ctx)
	defer end()
	conn, err := b.rt.DialPort(ctx, sandboxID, port)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(conn, client)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err = io.Copy(client, conn)
	_ = conn.Close()
	_ = client.Close()
	// A client may keep its half open until the stream ends, which it does when this
	// returns.
	t := time.NewTimer(closeTimeout)
	defer t.Stop()
	select {
	case <-sent:
	case <-t.C:
	}
	return err
}
