package embedded

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/internal/capability"
)

// Conn is a connection to a Runtime of the same process. It also connects to the pods:
// their addresses may not exist on the network, or belong to other hosts there.
type Conn struct {
	*grpc.ClientConn
	rt *Runtime
}

// DialContext is Runtime.DialContext. Clients find it as a capability, as runtime/cri
// does, for probes and hooks.
func (c *Conn) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return c.rt.DialContext(ctx, network, address)
}

// DialContext connects to an address. An address of a pod is dialed through the
// Executor, if it is a Dialer, and never on the network; nor is any address of
// Config.PodCIDR, unless the Executor allocates the addresses. Then pods on the node's
// network are tried at any other address before the network is.
func (r *Runtime) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial pod: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	ip, ierr := netip.ParseAddr(host)
	if err == nil && ierr == nil {
		conn, err := r.dialPods(ctx, ip, int32(number))
		if conn != nil || err != nil {
			return conn, err
		}
	}
	return (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, address)
}

// dialPods connects to the pod with the address. It returns neither a connection nor an
// error if no pod has it.
func (r *Runtime) dialPods(ctx context.Context, ip netip.Addr, port int32) (net.Conn, error) {
	_, allocates := capability.Of[PodIPAllocator](r.cfg.Executor) // its addresses are the machine's
	var last error
	ids, theirs := r.podsAt(ip, !allocates)
	for _, id := range ids {
		conn, err := r.DialPort(ctx, id, port)
		if err == nil {
			return conn, nil
		}
		if theirs || status.Code(err) != codes.Unimplemented {
			last = err
		}
	}
	if last == nil && !allocates && r.cfg.PodCIDR.Contains(ip) {
		last = errNoListener(net.JoinHostPort(ip.String(), strconv.Itoa(int(port))))
	}
	return nil, last
}

// podsAt returns the ids of the ready pods with an address, and true. If there are none
// and node is set, it returns those on the node's network, and false.
func (r *Runtime) podsAt(ip netip.Addr, node bool) (ids []string, theirs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var at, onNode []string
	for _, s := range r.sandboxes {
		switch {
		case !s.ready():
		case slices.Contains(s.ips, ip.String()):
			at = append(at, s.id)
		case len(s.ips) == 0 && node && !r.cfg.PodCIDR.Contains(ip):
			onNode = append(onNode, s.id)
		}
	}
	if len(at) > 0 {
		return at, true
	}
	return onNode, false
}

// errNoListener is the error of a port without a listener.
func errNoListener(address string) error {
	return fmt.Errorf("dial pod %s: %w", address, syscall.ECONNREFUSED)
}
