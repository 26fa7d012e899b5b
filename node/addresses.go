package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// AddressConfig describes the addresses of a node.
type AddressConfig struct {
	NodeName string
	Hostname string // default: NodeName
	// IPs are those that the operator gives (--node-ip of a kubelet): one, or one of each
	// family. 0.0.0.0 and :: choose only the family. Default: 0.0.0.0.
	IPs []string

	// What follows asks the machine; tests replace it.
	InterfaceAddrs func() ([]net.Addr, error)             // default: net.InterfaceAddrs
	LookupIP       func(host string) ([]net.IP, error)    // default: DNS, for up to two seconds
	DefaultIP      func(preferred net.IP) (net.IP, error) // that of the default route

	inDNS net.IP // of the name of the node, when DNS answered last; nil: it has not, or knows none
}

func (c *AddressConfig) complete() {
	if c.Hostname == "" {
		c.Hostname = c.NodeName
	}
	if c.InterfaceAddrs == nil {
		c.InterfaceAddrs = net.InterfaceAddrs
	}
	if c.LookupIP == nil {
		c.LookupIP = lookupIP
	}
	if c.DefaultIP == nil {
		c.DefaultIP = utilnet.ResolveBindAddress
	}
}

// Addresses returns the addresses of a node by the kubelet's rules: the given IPs, else
// the node's name if it is an IP, else the IP of that name in DNS, else that of the
// default route; and the host name. An IP that is given must be one of the machine's and
// be reachable from outside, unless it is the name of the node.
func Addresses(c AddressConfig) ([]corev1.NodeAddress, error) { return c.addresses() }

// addresses returns the addresses, and updates what is in DNS.
func (c *AddressConfig) addresses() ([]corev1.NodeAddress, error) {
	c.complete()
	var given []net.IP
	for _, s := range c.IPs {
		ip := net.ParseIP(s)
		if ip == nil {
			return nil, fmt.Errorf("node address %q: not an IP address", s)
		}
		if err := c.usable(ip); err != nil && !ip.IsUnspecified() && !ip.Equal(net.ParseIP(c.Hostname)) {
			return nil, fmt.Errorf("node address %s: %w; give one of the machine's", ip, err)
		}
		given = append(given, ip)
	}
	switch {
	case len(given) > 2 || len(given) == 2 && (isIPv4(given[0]) == isIPv4(given[1]) || given[0].IsUnspecified() || given[1].IsUnspecified()):
		return nil, errors.New("node addresses: two must be one IPv4 and one IPv6 address")
	case len(given) == 0:
		given = []net.IP{net.IPv4zero}
	}
	if given[0].IsUnspecified() {
		ip, err := c.find(given[0])
		if err != nil {
			return nil, fmt.Errorf("find the address of node %s: %w; give it", c.NodeName, err)
		}
		given[0] = ip
	}
	var out []corev1.NodeAddress
	for _, ip := range given {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: c.Hostname}), nil
}

// AddressDetector detects the addresses of a node and remembers its IPs, for a Config whose
// Addresses and CurrentIPs are those of the machine at the time: there may be no network when it
// boots, and another lease of DHCP later. An IP that was found in DNS stays that of the node while DNS does
// not answer and the machine has it. Its methods may be called from any goroutine.
type AddressDetector struct {
	detecting sync.Mutex // held during I/O; guards cfg
	cfg       AddressConfig

	mu  sync.Mutex // guards ips
	ips []string   // that were detected last; before, those that are given
}

// NewAddressDetector returns a detector. It does no I/O.
func NewAddressDetector(c AddressConfig) *AddressDetector {
	d := &AddressDetector{cfg: c}
	for _, s := range c.IPs {
		if ip := net.ParseIP(s); ip != nil && !ip.IsUnspecified() { // else it is a family
			d.ips = append(d.ips, s)
		}
	}
	return d
}

// Detect returns the addresses now, as Addresses does. It blocks for two seconds at most, if there is
// no DNS. It is Config.Addresses.
func (d *AddressDetector) Detect() ([]corev1.NodeAddress, error) {
	d.detecting.Lock()
	all, err := d.cfg.addresses()
	d.detecting.Unlock()
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, address := range all {
		if address.Type == corev1.NodeInternalIP {
			ips = append(ips, address.Address)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ips = ips
	return all, nil
}

// IPs returns the IPs that were detected last, primary first; before, those that are given, even
// while the machine does not have them. It does not block. It is Config.CurrentIPs.
func (d *AddressDetector) IPs() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ips)
}

// lookupTimeout bounds the wait for DNS, without which many nodes are.
const lookupTimeout = 2 * time.Second

func lookupIP(host string) ([]net.IP, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout) //nolint:forbidigo // bounded
	defer cancel()
	return net.DefaultResolver.LookupIP(ctx, "ip", host)
}

func isIPv4(ip net.IP) bool { return ip.To4() != nil }

// find returns the address of a node for which none is given. One of the preferred
// family wins.
func (c *AddressConfig) find(preferred net.IP) (net.IP, error) {
	if ip := net.ParseIP(c.Hostname); ip != nil {
		return ip, nil
	}
	ips, err := c.LookupIP(c.NodeName) // most nodes are not in DNS
	if dnsErr, isDNS := errors.AsType[*net.DNSError](err); err != nil && (!isDNS || !dnsErr.IsNotFound) && c.inDNS != nil && c.usable(c.inDNS) == nil {
		return c.inDNS, nil
	}
	c.inDNS = c.choose(ips, preferred)
	if c.inDNS != nil {
		return c.inDNS, nil
	}
	return c.DefaultIP(preferred)
}

// choose returns one of the IPs by which others reach this machine, or nil.
func (c *AddressConfig) choose(ips []net.IP, preferred net.IP) (chosen net.IP) {
	for _, ip := range ips {
		switch {
		case c.usable(ip) != nil:
		case isIPv4(ip) == isIPv4(preferred):
			return ip
		case chosen == nil:
			chosen = ip
		}
	}
	return chosen
}

// usable returns why others cannot reach this machine at ip.
func (c *AddressConfig) usable(ip net.IP) error {
	switch {
	case ip.IsLoopback():
		return errors.New("a loopback address")
	case ip.IsMulticast():
		return errors.New("a multicast address")
	case ip.IsLinkLocalUnicast():
		return errors.New("a link-local address")
	case ip.IsUnspecified():
		return errors.New("not a specific address")
	}
	addrs, err := c.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("list addresses of interfaces: %w", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return nil
		}
	}
	return errors.New("not an address of an interface")
}
