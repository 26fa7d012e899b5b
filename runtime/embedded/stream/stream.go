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
	"strings"
	"sync"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// Server serves the URLs that Exec, Attach and PortForward return. A URL is valid for
// one use within a minute, and is the only authorization: listen on the loopback.
type Server struct {
	rt   *embedded.Runtime
	lis  net.Listener
	http *http.Server

	live sync.WaitGroup // streams in progress
	stop chan struct{}  // closed when they must end
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
	s.http = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	rt.SetStreamingServer(urls{handler})
	return s, nil
}

// closeTimeout bounds the wait for a client that does not close its half of a forwarded
// connection after the pod has closed the other.
const closeTimeout = time.Second

// withInput marks the id of a container for which stdin was requested: by WebSocket the
// library always passes an input stream.
const withInput = "+stdin"

// urls returns the URLs, with the request for stdin in them.
type urls struct{ streaming.Server }

func (u urls) GetExec(req *v1.ExecRequest) (*v1.ExecResponse, error) {
	if req.GetStdin() {
		req.ContainerId += withInput
	}
	return u.Server.GetExec(req)
}

func (u urls) GetAttach(req *v1.AttachRequest) (*v1.AttachResponse, error) {
	if req.GetStdin() {
		req.ContainerId += withInput
	}
	return u.Server.GetAttach(req)
}

// Run serves until ctx ends, which also ends the streams in progress. Run it once.
func (s *Server) Run(ctx context.Context) error {
	end := context.AfterFunc(ctx, func() {
		close(s.stop)
		_ = s.http.Close() // its connections are closed either way
	})
	defer end()
	err := s.http.Serve(s.lis)
	if ctx.Err() != nil {
		s.live.Wait()
		return nil
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve streams: %w", err)
}

// begin binds a stream to the lifetime of the server.
func (s *Server) begin(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
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

// exitError reports an exit code to the library.
type exitError int32

func (e exitError) Error() string   { return fmt.Sprintf("exit status %d", int32(e)) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return int(e) }

// streams returns the streams that the client opened; the interfaces of the others stay
// nil.
func streams(id string, in io.Reader, out, errOut io.WriteCloser, tty bool) (string, embedded.IO) {
	sio := embedded.IO{TTY: tty}
	id, input := strings.CutSuffix(id, withInput)
	if input {
		sio.Stdin = in
	}
	if out != nil {
		sio.Stdout = out
	}
	if errOut != nil {
		sio.Stderr = errOut
	}
	return id, sio
}

// sizes forwards terminal sizes until the client disconnects.
func sizes(ctx context.Context, from <-chan remotecommand.TerminalSize) <-chan embedded.TerminalSize {
	if from == nil {
		return nil
	}
	to := make(chan embedded.TerminalSize)
	go func() {
		defer close(to)
		for {
			select {
			case <-ctx.Done():
				return
			case s, ok := <-from:
				if !ok {
					return
				}
				select {
				case to <- embedded.TerminalSize{Width: s.Width, Height: s.Height}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return to
}

// Exec implements streaming.Runtime.
func (b *backend) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, end := b.begin(ctx)
	defer end()
	id, sio := streams(id, in, out, errOut, tty)
	code, err := b.rt.ExecStreams(ctx, id, embedded.Exec{Cmd: cmd, IO: sio, Resize: sizes(ctx, resize)})
	if err != nil {
		return err
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// Attach implements streaming.Runtime.
func (b *backend) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, end := b.begin(ctx)
	defer end()
	id, sio := streams(id, in, out, errOut, tty)
	return b.rt.AttachStreams(ctx, id, sio, sizes(ctx, resize))
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
