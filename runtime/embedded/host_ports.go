package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/capability"
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
// a container has its host port already, as has a host process with the same port: local is
// whether the addresses of pods are the machine's.
func servedPorts(pod *v1.PodSandboxConfig, local bool) []*v1.PortMapping {
	var ports []*v1.PortMapping
	for _, m := range pod.GetPortMappings() {
		isOpen := local && m.GetHostPort() == m.GetContainerPort()
		if m.GetHostPort() > 0 && !isOpen && m.GetProtocol() == v1.Protocol_TCP && !hostNetwork(pod) {
			ports = append(ports, m)
		}
	}
	return ports
}

// openPorts opens all host ports of s or fails.
func (r *Runtime) openPorts(ctx context.Context, s *sandbox) (*hostPorts, error) {
	d, can := capability.Of[Dialer](r.cfg.Executor)
	_, local := capability.Of[PodIPAllocator](r.cfg.Executor)
	ports := servedPorts(s.config, local)
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

// close closes listeners and connections, and waits.
func (h *hostPorts) close() {
	if h == nil {
		return
	}
	h.end() // first: what a listener says at its end is no failure
	for _, lis := range h.lis {
		endListener(lis)
	}
	h.wg.Wait()
}
