package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/node"
)

// addresses are those of this node. Without -node-ip they are what the machine has at the time.
type addresses struct {
	*node.AddressDetector
	nodeName string
	ofNode   func() []corev1.NodeAddress // of the Node, to which a cloud gives them; nil: none does
}

// newAddresses returns those of a node of a cluster. It does no I/O.
func newAddresses(nodeName string, nodeIPs []string) *addresses {
	return &addresses{AddressDetector: node.NewAddressDetector(node.AddressConfig{NodeName: nodeName, IPs: nodeIPs}), nodeName: nodeName}
}

// nodeIPs returns the addresses of -node-ip.
func (f *flags) nodeIPs() []string {
	ips := split(f.nodeIP)
	for i := range ips {
		ips[i] = strings.TrimSpace(ips[i])
	}
	return ips
}

// checkNodeIPs returns an error for addresses that no node can have: two are one of each family.
func checkNodeIPs(ips []string) error {
	for _, text := range ips {
		switch ip := net.ParseIP(text); {
		case ip == nil:
			return fmt.Errorf("%q is not an IP address", text)
		case len(ips) > 1 && ip.IsUnspecified():
			return fmt.Errorf("%s only chooses the family; give it alone, or two addresses", text)
		}
	}
	if len(ips) > 2 || len(ips) == 2 && (net.ParseIP(ips[0]).To4() == nil) == (net.ParseIP(ips[1]).To4() == nil) {
		return errors.New("must be one address, or an IPv4 and an IPv6 address")
	}
	return nil
}

// Detect returns the addresses now. It blocks for two seconds at most, if there is no DNS.
func (a *addresses) Detect() ([]corev1.NodeAddress, error) {
	all, err := a.AddressDetector.Detect()
	if err != nil {
		return nil, fmt.Errorf("%w with -node-ip", err) // it ends in what to give
	}
	return all, nil
}

// IPs returns the IPs of the node, primary first. Until a cloud has given the Node addresses they are those of the machine.
func (a *addresses) IPs() []string {
	if a.ofNode != nil {
		if ips, _ := a.given(); len(ips) > 0 {
			return ips
		}
	}
	return a.AddressDetector.IPs()
}

// given returns the addresses of the Node: internal IPs before external ones, and names.
func (a *addresses) given() (ips, hostnames []string) {
	all := a.ofNode()
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS} {
		for _, address := range all {
			isIP := net.ParseIP(address.Address) != nil
			switch {
			case address.Type != kind || address.Address == "":
			case isIP && !slices.Contains(ips, address.Address):
				ips = append(ips, address.Address)
			case !isIP && kind != corev1.NodeInternalIP && kind != corev1.NodeExternalIP && !slices.Contains(hostnames, address.Address):
				hostnames = append(hostnames, address.Address)
			}
		}
	}
	return ips, hostnames
}

// names returns what the serving certificate of the node is for; nothing while no address is known.
func (a *addresses) names() (ips, hostnames []string) {
	if a.ofNode != nil {
		if ips, hostnames = a.given(); len(ips) == 0 {
			return nil, nil
		}
		return ips, hostnames
	}
	ips = a.IPs()
	switch {
	case len(ips) == 0:
	case net.ParseIP(a.nodeName) == nil:
		hostnames = []string{a.nodeName}
	case !slices.Contains(ips, a.nodeName): // an API server connects to the name first
		ips = append(ips, a.nodeName)
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
