//go:build linux

package containerdtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// network is an IPv4 network of 254 pods that no other node of the tests has, and no
// interface of this machine: one that a killed test has left would take the packets.
type network struct {
	subnet string // CIDR
	claim  net.Listener
}

// claimNetwork chooses a network and keeps other test processes from choosing it.
func claimNetwork() (*network, error) {
	inUse, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for range 1000 {
		ip := net.IPv4(10, byte(64+rand.N(128)), byte(rand.N(256)), 0) //nolint:gosec // no secret
		subnet := &net.IPNet{IP: ip.To4(), Mask: net.CIDRMask(24, 32)}
		if overlaps(subnet, inUse) {
			continue
		}
		// An abstract address disappears with its process, whatever ends that.
		claim, err := net.Listen("unix", "@sublet-test-network-"+ip.String())
		if err == nil {
			return &network{subnet.String(), claim}, nil
		}
	}
	return nil, errors.New("no free network in 10.64.0.0 to 10.191.255.255")
}

func (n *network) release() error {
	if n == nil {
		return nil
	}
	if err := n.claim.Close(); err != nil {
		return fmt.Errorf("release network %s: %w", n.subnet, err)
	}
	return nil
}

func overlaps(subnet *net.IPNet, addrs []net.Addr) bool {
	for _, a := range addrs {
		if used, ok := a.(*net.IPNet); ok && (subnet.Contains(used.IP) || used.Contains(subnet.IP)) {
			return true
		}
	}
	return false
}
