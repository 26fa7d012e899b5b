package node

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestAddresses(t *testing.T) {
	machine := func() ([]net.Addr, error) {
		var addrs []net.Addr
		for _, s := range []string{"127.0.0.1/8", "10.0.0.5/24", "fd00::5/64", "192.168.1.5/24"} {
			ip, n, err := net.ParseCIDR(s)
			if err != nil {
				return nil, err
			}
			addrs = append(addrs, &net.IPNet{IP: ip, Mask: n.Mask})
		}
		return addrs, nil
	}
	for name, tc := range map[string]struct {
		node, host string
		ips, dns   []string
		want       []string // internal IPs
		wantErr    string
	}{
		"given":                                    {node: "n", ips: []string{"10.0.0.5"}, want: []string{"10.0.0.5"}},
		"given of both families":                   {node: "n", ips: []string{"fd00::5", "10.0.0.5"}, want: []string{"fd00::5", "10.0.0.5"}},
		"given wins over the name":                 {node: "192.168.1.5", ips: []string{"10.0.0.5"}, want: []string{"10.0.0.5"}},
		"the name is an IP":                        {node: "127.0.0.1", want: []string{"127.0.0.1"}},
		"the name is the given loopback address":   {node: "127.0.0.1", ips: []string{"127.0.0.1"}, want: []string{"127.0.0.1"}},
		"the host name is an IP":                   {node: "n", host: "10.0.0.5", want: []string{"10.0.0.5"}},
		"in DNS":                                   {node: "n", dns: []string{"127.0.0.1", "10.9.9.9", "fd00::5", "192.168.1.5"}, want: []string{"192.168.1.5"}},
		"in DNS with IPv6 preferred":               {node: "n", ips: []string{"::"}, dns: []string{"192.168.1.5", "fd00::5"}, want: []string{"fd00::5"}},
		"in DNS of the other family":               {node: "n", ips: []string{"::"}, dns: []string{"10.0.0.5", "192.168.1.5"}, want: []string{"10.0.0.5"}},
		"of the default route":                     {node: "n", want: []string{"10.0.0.5"}},
		"of the default route with IPv6 preferred": {node: "n", ips: []string{"::"}, want: []string{"fd00::5"}},
		"not an IP":                                {node: "n", ips: []string{"eth0"}, wantErr: `node address "eth0": not an IP address`},
		"not of this machine":                      {node: "n", ips: []string{"10.0.0.6"}, wantErr: "not an address of an interface"},
		"loopback":                                 {node: "n", ips: []string{"127.0.0.1"}, wantErr: "a loopback address"},
		"multicast":                                {node: "n", ips: []string{"224.0.0.1"}, wantErr: "a multicast address"},
		"link-local":                               {node: "n", ips: []string{"fe80::1"}, wantErr: "a link-local address"},
		"two of one family":                        {node: "n", ips: []string{"10.0.0.5", "192.168.1.5"}, wantErr: "one IPv4 and one IPv6"},
		"two of which one is not specific":         {node: "n", ips: []string{"10.0.0.5", "::"}, wantErr: "one IPv4 and one IPv6"},
		"three":                                    {node: "n", ips: []string{"10.0.0.5", "fd00::5", "192.168.1.5"}, wantErr: "one IPv4 and one IPv6"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Addresses(AddressConfig{
				NodeName: tc.node, Hostname: tc.host, IPs: tc.ips, InterfaceAddrs: machine,
				LookupIP: func(string) ([]net.IP, error) {
					var ips []net.IP
					for _, s := range tc.dns {
						ips = append(ips, net.ParseIP(s))
					}
					return ips, nil
				},
				DefaultIP: func(preferred net.IP) (net.IP, error) {
					if preferred.To4() == nil {
						return net.ParseIP("fd00::5"), nil
					}
					return net.ParseIP("10.0.0.5"), nil
				},
			})
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				return
			}
			require.NoError(t, err)
			host := tc.host
			if host == "" {
				host = tc.node
			}
			var want []corev1.NodeAddress
			for _, ip := range tc.want {
				want = append(want, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
			}
			assert.Equal(t, append(want, corev1.NodeAddress{Type: corev1.NodeHostName, Address: host}), got)
		})
	}
}

func TestAddresses_OfAMachineWithout(t *testing.T) {
	broken := errors.New("no route")
	_, err := Addresses(AddressConfig{
		NodeName: "n", LookupIP: func(string) ([]net.IP, error) { return nil, broken },
		DefaultIP: func(net.IP) (net.IP, error) { return nil, broken },
	})
	require.ErrorIs(t, err, broken)
	_, err = Addresses(AddressConfig{NodeName: "n", IPs: []string{"10.0.0.5"}, InterfaceAddrs: func() ([]net.Addr, error) { return nil, broken }})
	require.ErrorIs(t, err, broken)
}

func TestAddressDetector(t *testing.T) {
	lease := ""
	d := NewAddressDetector(AddressConfig{
		NodeName: "n", IPs: []string{"0.0.0.0"},
		LookupIP: func(string) ([]net.IP, error) { return nil, errors.New("no DNS") },
		DefaultIP: func(net.IP) (net.IP, error) {
			if lease == "" {
				return nil, errors.New("no default routes found")
			}
			return net.ParseIP(lease), nil
		},
	})
	_, err := d.Detect()
	require.ErrorContains(t, err, "no default routes found")
	assert.Empty(t, d.IPs())
	for _, lease = range []string{"10.0.0.5", "10.0.0.6"} {
		got, err := d.Detect()
		require.NoError(t, err)
		assert.Equal(t, []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lease}, {Type: corev1.NodeHostName, Address: "n"}}, got)
		assert.Equal(t, []string{lease}, d.IPs())
	}
	d.IPs()[0] = "192.0.2.1"
	lease = ""
	_, err = d.Detect()
	require.Error(t, err)
	assert.Equal(t, []string{"10.0.0.6"}, d.IPs(), "those that were detected last")
	assert.Equal(t, []string{"192.0.2.1"}, NewAddressDetector(AddressConfig{NodeName: "n", IPs: []string{"192.0.2.1"}}).IPs(), "also while the machine does not have it")
}

// A node does not get another address each time that DNS does not answer.
func TestAddressDetector_KeepsWhatWasInDNS(t *testing.T) {
	inDNS, has, errDNS := "10.0.1.5", "10.0.1.5", error(nil)
	d := NewAddressDetector(AddressConfig{
		NodeName: "n",
		InterfaceAddrs: func() ([]net.Addr, error) {
			return []net.Addr{&net.IPNet{IP: net.ParseIP("10.0.0.5")}, &net.IPNet{IP: net.ParseIP(has)}}, nil
		},
		LookupIP: func(string) ([]net.IP, error) {
			if errDNS != nil {
				return nil, errDNS
			}
			return []net.IP{net.ParseIP(inDNS)}, nil
		},
		DefaultIP: func(net.IP) (net.IP, error) { return net.ParseIP("10.0.0.5"), nil },
	})
	detect := func() string {
		t.Helper()
		all, err := d.Detect()
		require.NoError(t, err)
		return all[0].Address
	}
	timeout := &net.DNSError{Err: "i/o timeout", IsTimeout: true, IsTemporary: true}
	errDNS = timeout
	assert.Equal(t, "10.0.0.5", detect(), "DNS has never answered")
	errDNS = nil
	assert.Equal(t, "10.0.1.5", detect())
	errDNS = timeout
	assert.Equal(t, "10.0.1.5", detect())
	has = "10.0.2.5"
	assert.Equal(t, "10.0.0.5", detect(), "the machine does not have it any more")
	inDNS, errDNS = has, nil
	assert.Equal(t, "10.0.2.5", detect())
	errDNS = &net.DNSError{Err: "no such host", IsNotFound: true}
	assert.Equal(t, "10.0.0.5", detect(), "DNS says that there is none")
	errDNS = timeout
	assert.Equal(t, "10.0.0.5", detect())
}
