package main

import (
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/node"
)

// addresses are those of this node. Without -node-ip they are what the machine has at the time.
type addresses struct {
	*node.AddressDetector
	nodeName string
}

// newAddresses returns those of a node of a cluster. It does no I/O.
func newAddresses(nodeName, nodeIP string) *addresses {
	cfg := node.AddressConfig{NodeName: nodeName}
	if nodeIP != "" {
		cfg.IPs = []string{nodeIP}
	}
	return &addresses{node.NewAddressDetector(cfg), nodeName}
}

// Detect returns the addresses now. It blocks for two seconds at most, if there is no DNS.
func (a *addresses) Detect() ([]corev1.NodeAddress, error) {
	all, err := a.AddressDetector.Detect()
	if err != nil {
		return nil, fmt.Errorf("%w with -node-ip", err) // it ends in what to give
	}
	return all, nil
}

// names returns what the serving certificate of the node is for; nothing while no address is known.
func (a *addresses) names() (ips, hostnames []string) {
	ips = a.IPs()
	if len(ips) > 0 && net.ParseIP(a.nodeName) == nil {
		hostnames = []string{a.nodeName}
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
