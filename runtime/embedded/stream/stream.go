// Package stream serves exec, attach and port-forward of an embedded runtime, by
// SPDY and by WebSocket, the way crictl and the kubelet ask for them. It is a
// package of its own so that only those who need it link its dependencies.
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

// Server answers the URLs that Exec, Attach and PortForward hand out. A URL is
// good for one use within a minute, and is the only key there is: listen on the
// loopback.
type Server struct {
	rt   *embedded.Runtime
	lis  net.Listener
	http *http.Server

	live sync.WaitGroup // streams under way
	stop chan struct{}  // closed when they must end
}

// New returns a server for rt on lis, which it owns, and lets rt hand out its
// URLs. Nothing is served before Run.
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

// lingering is how long a client is waited for that does not end its half of a
// forwarded connection though the pod has ended the other.
const lingering = time.Second

// withInput marks the id of a container whose input was asked for: by WebSocket
// the library hands over an input stream in any case.
const withInput = "+stdin"

// urls makes the URLs and keeps in them what the library forgets.
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

// Run serves until ctx ends; streams under way end with it.
func (s *Server) Run(ctx context.Context) error {
	end := context.AfterFunc(ctx, func() {
		close(s.stop)
		_ = s.http.Close() // what it closes is gone anyway
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

// begin ties a stream to the life of the server.
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

// backend is the runtime as the streaming library wants it.
type backend struct{ *Server }

// exitError tells the library an exit code.
type exitError int32

func (e exitError) Error() string   { return fmt.Sprintf("exit status %d", int32(e)) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return int(e) }

// streams puts together what the client opened; the interfaces stay nil for
// what it did not.
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

// sizes hands on terminal sizes until the client goes.
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
	// A client may keep its half open until it hears that all is over, which it
	// does when we return.
	t := time.NewTimer(lingering)
	defer t.Stop()
	select {
	case <-sent:
	case <-t.C:
	}
	return err
}
