package provider

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

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/internal/cristream"
)

// streamServer serves the URLs of exec, attach and port-forward on the loopback. A URL is
// valid for one use within a minute, and is the only authorization.
type streamServer struct {
	urls     streaming.Server
	http     *http.Server
	listener *listener
	stop     context.CancelCauseFunc

	mu     sync.Mutex // guards closed, after which live does not grow
	closed bool
	live   sync.WaitGroup // streams in progress, and the server
}

// errClosed is why a stream ends, or does not begin.
var errClosed = errors.New("the provider runtime was closed")

// server returns the streaming server. It is started at its first use.
func (r *Runtime) server(ctx context.Context) (streaming.Server, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	if r.streams != nil {
		return r.streams.urls, nil
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for streams: %w", err)
	}
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	s := &streamServer{stop: stop, listener: &listener{Listener: tcp}}
	cfg := streaming.DefaultConfig
	cfg.BaseURL = &url.URL{Scheme: "http", Host: tcp.Addr().String()}
	handler, err := streaming.NewServer(cfg, &backend{r: r, server: s, stopped: ctx})
	if err != nil {
		_ = tcp.Close()
		return nil, fmt.Errorf("start streaming server: %w", err)
	}
	s.urls = cristream.Server{Server: handler}
	s.http = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ConnContext: cristream.WithConnection}
	r.streams = s
	s.live.Go(func() {
		if err := s.http.Serve(cristream.Listener{Listener: s.listener}); !errors.Is(err, http.ErrServerClosed) {
			r.cfg.Logger.Warn("streaming server failed", logattr.Err(err))
		}
	})
	return s.urls, nil
}

// close ends all streams. It waits for those that respect their context.
func (s *streamServer) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(errClosed)
	err := s.http.Close()
	s.listener.closeConns()
	done := make(chan struct{})
	go func() {
		s.live.Wait()
		close(done)
	}()
	timer := time.NewTimer(returnTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		err = errors.Join(err, errors.New("streams of the provider have not ended"))
	}
	return err
}

// ExecURL implements runtime.Streamer.
func (r *Runtime) ExecURL(ctx context.Context, containerID string, command []string, s runtime.Streams) (*url.URL, error) {
	if _, ok := r.cfg.Provider.(CommandRunner); !ok {
		return nil, unsupported("exec")
	}
	server, err := r.server(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := server.GetExec(&criv1.ExecRequest{
		ContainerId: containerID, Cmd: command, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY,
	})
	if err != nil {
		return nil, err
	}
	return url.Parse(resp.GetUrl())
}

// AttachURL implements runtime.Streamer.
func (r *Runtime) AttachURL(ctx context.Context, containerID string, s runtime.Streams) (*url.URL, error) {
	if _, ok := r.cfg.Provider.(Attacher); !ok {
		return nil, unsupported("attach")
	}
	server, err := r.server(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := server.GetAttach(&criv1.AttachRequest{
		ContainerId: containerID, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY,
	})
	if err != nil {
		return nil, err
	}
	return url.Parse(resp.GetUrl())
}

// PortForwardURL implements runtime.Streamer.
func (r *Runtime) PortForwardURL(ctx context.Context, sandboxID string, ports []int32) (*url.URL, error) {
	if _, ok := r.cfg.Provider.(PortForwarder); !ok {
		return nil, unsupported("port-forward")
	}
	server, err := r.server(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := server.GetPortForward(&criv1.PortForwardRequest{PodSandboxId: sandboxID, Port: ports})
	if err != nil {
		return nil, err
	}
	return url.Parse(resp.GetUrl())
}

// backend is the provider for the streaming library.
type backend struct {
	r       *Runtime
	server  *streamServer
	stopped context.Context //nolint:containedctx // of the server's lifetime
}

// begin binds a stream to the lifetime of the server. It returns an error if that has ended.
func (b *backend) begin(ctx context.Context) (context.Context, func(), error) {
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	if b.server.closed {
		return nil, nil, errClosed
	}
	b.server.live.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	unbind := context.AfterFunc(b.stopped, func() { cancel(errClosed) })
	return ctx, func() {
		unbind()
		cancel(nil)
		b.server.live.Done()
	}, nil
}

// open returns the streams that the client opened.
func open(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) (string, podstream.Options) {
	id, s := cristream.Open(id, in, out, errOut)
	return id, podstream.Options{Stdin: s.In, Stdout: s.Out, Stderr: s.ErrOut, TTY: tty, Resize: cristream.Sizes[podstream.TerminalSize](ctx, resize)}
}

// Exec implements streaming.Runtime.
func (b *backend) Exec(ctx context.Context, id string, command []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, end, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	id, streams := open(ctx, id, in, out, errOut, tty, resize)
	err = b.r.run(ctx, id, command, streams)
	if exit, ok := errors.AsType[podstream.ExitError](err); ok {
		return cristream.ExitError(exit.Code)
	}
	return err
}

// Attach implements streaming.Runtime.
func (b *backend) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, leave := cristream.WhileConnected(ctx)
	defer leave()
	ctx, end, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	attacher, ok := b.r.cfg.Provider.(Attacher)
	if !ok {
		return unsupported("attach")
	}
	id, streams := open(ctx, id, in, out, errOut, tty, resize)
	return b.r.withPod(id, "attach", func(namespace, name, container string) error {
		return attacher.AttachToContainer(ctx, namespace, name, container, streams)
	})
}

// PortForward implements streaming.Runtime.
func (b *backend) PortForward(ctx context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error {
	ctx, end, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	forwarder, ok := b.r.cfg.Provider.(PortForwarder)
	if !ok {
		return unsupported("port-forward")
	}
	return b.r.withPod(sandboxID, "forward port", func(namespace, name, _ string) error {
		return forwarder.PortForward(ctx, namespace, name, port, stream)
	})
}
