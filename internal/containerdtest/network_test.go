//go:build linux

package containerdtest

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestClaimNetwork(t *testing.T) {
	subnets := map[string]bool{}
	for range 500 {
		n, err := claimNetwork()
		require.NoError(t, err)
		defer func() { assert.NoError(t, n.release()) }()
		require.NotContains(t, subnets, n.subnet)
		subnets[n.subnet] = true
	}
}

func TestOverlaps(t *testing.T) {
	network := func(s string) *net.IPNet {
		ip, n, err := net.ParseCIDR(s)
		require.NoError(t, err)
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	for _, tt := range []struct {
		used string
		want bool
	}{
		{"10.70.5.1/32", true}, // as ptp leaves it
		{"10.70.5.255/24", true},
		{"10.0.0.1/8", true},
		{"10.70.6.1/24", false},
		{"192.0.2.2/24", false},
		{"fd00::2/64", false},
	} {
		assert.Equal(t, tt.want, overlaps(network("10.70.5.0/24"), []net.Addr{network("127.0.0.1/8"), network(tt.used)}), tt.used)
	}
}
