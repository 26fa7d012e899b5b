package embedded

import (
	"context"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/internal/safe"
)

// A panic in an executor becomes the error of the call.

func (r *Runtime) create(ctx context.Context, c *Container) error {
	return safe.Call(r.cfg.Logger, "create container "+c.ID, func() error { return r.cfg.Executor.Create(ctx, c) })
}

func (r *Runtime) start(ctx context.Context, c *Container, sio IO, exited func(Exit)) (proc Process, err error) {
	err = safe.Call(r.cfg.Logger, "start container "+c.ID, func() (err error) {
		proc, err = r.cfg.Executor.Start(ctx, c, sio, exited)
		return err
	})
	return proc, err
}

func (r *Runtime) prepareSandbox(ctx context.Context, p SandboxPreparer, s *sandbox) error {
	return safe.Call(r.cfg.Logger, "prepare pod sandbox "+s.id, func() error { return p.Sandbox(ctx, s.config) })
}

func (r *Runtime) podIPs(a PodIPAllocator, s *sandbox) (ips []string, err error) {
	err = safe.Call(r.cfg.Logger, "allocate addresses of pod sandbox "+s.id, func() error {
		ips = a.PodIPs(s.config)
		return nil
	})
	return ips, err
}

func (r *Runtime) remove(c *Container) {
	safe.Do(r.cfg.Logger, "remove container "+c.ID, func() { r.cfg.Executor.Remove(c) })
}

func (r *Runtime) signal(c *container, proc Process, sig syscall.Signal) error {
	return safe.Call(r.cfg.Logger, "signal container "+c.ID, func() error { return proc.Signal(sig) })
}

func (r *Runtime) dialPod(ctx context.Context, d Dialer, s *sandbox, port int32) (conn net.Conn, err error) {
	err = safe.Call(r.cfg.Logger, "dial pod sandbox "+s.id, func() (err error) {
		conn, err = d.DialPod(ctx, s.config, port)
		return err
	})
	return conn, err
}

func (r *Runtime) closeExecutor(e io.Closer) error {
	return safe.Call(r.cfg.Logger, "close executor", e.Close)
}

// recovering returns the options of a server in which a panic becomes the error of its
// call.
func (r *Runtime) recovering() []grpc.ServerOption {
	failed := func(err error) error { return status.Error(codes.Internal, err.Error()) }
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
			defer func() {
				if v := recover(); v != nil {
					err = failed(safe.Recovered(r.cfg.Logger, info.FullMethod, v))
				}
			}()
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
			defer func() {
				if v := recover(); v != nil {
					err = failed(safe.Recovered(r.cfg.Logger, info.FullMethod, v))
				}
			}()
			return handle(srv, ss)
		}),
	}
}
