package main

import (
	"fmt"
	"net"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/node"
)

// addresses are those of this node. Without -node-ip they are what the machine has at the time: there may be no network when
// it boots, and another lease of DHCP later. Methods may be called from any goroutine.
type addresses struct {
	cfg node.AddressConfig

	mu  sync.Mutex // guards ips
	ips []string   // that were detected last; empty before
}

// newAddresses returns those of a node of a cluster. It does no I/O.
func newAddresses(nodeName, nodeIP string) *addresses {
	a := &addresses{cfg: node.AddressConfig{NodeName: nodeName}}
	if nodeIP != "" {
		a.cfg.IPs = []string{nodeIP}
	}
	if ip := net.ParseIP(nodeIP); ip != nil && !ip.IsUnspecified() {
		a.ips = a.cfg.IPs // also while the machine does not have it
	}
	return a
}

// detect returns the addresses now. It blocks for two seconds at most, if there is no DNS.
func (a *addresses) detect() ([]corev1.NodeAddress, error) {
	all, err := node.Addresses(a.cfg)
	if err != nil {
		return nil, fmt.Errorf("%w with -node-ip", err) // it ends in what to give
	}
	var ips []string
	for _, address := range all {
		if address.Type == corev1.NodeInternalIP {
			ips = append(ips, address.Address)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ips = ips
	return all, nil
}

// current returns the IPs that were detected last, primary first. It does not block.
func (a *addresses) current() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.ips)
}

// names returns what the serving certificate of the node is for; nothing while no address is known.
func (a *addresses) names() (ips, hostnames []string) {
	ips = a.current()
	if len(ips) > 0 && net.ParseIP(a.cfg.NodeName) == nil {
		hostnames = []string{a.cfg.NodeName}
	}
	return ips, hostnames
}

// machineIP returns the first address of the machine that is not loopback, for a node without a cluster.
func machineIP() (string, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("find the address of this node: %w; give -node-ip", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String(), nil
		}
	}
	return "127.0.0.1", nil
}
