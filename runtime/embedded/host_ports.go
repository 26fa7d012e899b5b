package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/capability"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/sleep"
)

// hostPorts forwards connections to the host ports of one pod. A nil hostPorts has
// none.
type hostPorts struct {
	dial func(ctx context.Context, port int32) (net.Conn, error)
	log  *slog.Logger
	lis  []net.Listener
	ctx  context.Context // of all connections
	end  context.CancelFunc
	wg   sync.WaitGroup
}

// servedPorts returns the ports of a pod that must be forwarded. On the host's network
// a container has its host port already, as has a host process with the same port.
func servedPorts(pod *v1.PodSandboxConfig) []*v1.PortMapping {
	var ports []*v1.PortMapping
	for _, m := range pod.GetPortMappings() {
		if m.GetHostPort() > 0 && m.GetHostPort() != m.GetContainerPort() && m.GetProtocol() == v1.Protocol_TCP && !hostNetwork(pod) {
			ports = append(ports, m)
		}
	}
	return ports
}

// openPorts opens all host ports of s or fails.
func (r *Runtime) openPorts(ctx context.Context, s *sandbox) (*hostPorts, error) {
	d, can := capability.Of[Dialer](r.cfg.Executor)
	ports := servedPorts(s.config)
	if !r.cfg.HostPorts || !can || len(ports) == 0 {
		return nil, nil
	}
	h := &hostPorts{log: r.cfg.Logger, dial: func(ctx context.Context, port int32) (net.Conn, error) { return r.dialPod(ctx, d, s, port) }}
	h.ctx, h.end = context.WithCancel(context.WithoutCancel(ctx)) // they outlive the call
	for _, m := range ports {
		address := net.JoinHostPort(m.GetHostIp(), strconv.Itoa(int(m.GetHostPort())))
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			h.close()
			return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("host port %s: %v", address, err))
		}
		h.lis = append(h.lis, lis)
		h.wg.Go(func() { h.accept(lis, m.GetContainerPort()) })
	}
	return h, nil
}

// maxForwarded bounds the connections of one host port. Each has two descriptors of this
// process.
const maxForwarded = 512

// Pauses after a connection that could not be accepted, as in net/http.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// accept forwards the connections of one port until its listener is closed.
func (h *hostPorts) accept(lis net.Listener, port int32) {
	served := make(chan struct{}, maxForwarded) // no netutil.LimitListener: its connections have no CloseWrite
	var pause time.Duration
	for {
		select {
		case served <- struct{}{}:
		case <-h.ctx.Done():
			return
		}
		conn, err := lis.Accept()
		if err == nil {
			pause = 0
			h.wg.Go(func() {
				h.serve(conn, port)
				<-served
			})
			continue
		}
		<-served
		switch {
		case errors.Is(err, net.ErrClosed) || h.ctx.Err() != nil:
			return
		case pause == 0: // no descriptors are left, for example
			h.log.Warn("connection to a host port not accepted", slog.String("address", lis.Addr().String()), logattr.Err(err))
		}
		pause = min(max(2*pause, minAcceptPause), maxAcceptPause)
		if sleep.For(h.ctx, pause) != nil {
			return
		}
	}
}

// serve forwards one connection. Each direction ends by itself.
func (h *hostPorts) serve(out net.Conn, port int32) {
	in, err := h.dial(h.ctx, port)
	if err != nil {
		_ = out.Close() // the pod does not accept it
		return
	}
	defer context.AfterFunc(h.ctx, func() { _, _ = in.Close(), out.Close() })()
	var wg sync.WaitGroup
	wg.Go(func() { pass(in, out) })
	pass(out, in)
	wg.Wait()
	_, _ = in.Close(), out.Close()
}

// pass copies until from ends, and closes the write half of to.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = to.Close()
}

// close closes listeners and connections, and waits.
func (h *hostPorts) close() {
	if h == nil {
		return
	}
	for _, lis := range h.lis {
		_ = lis.Close() // it is closed either way
	}
	h.end()
	h.wg.Wait()
}
