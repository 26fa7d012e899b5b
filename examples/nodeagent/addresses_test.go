package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
)

// A node of a cluster boots without a network. Later it has an address, and then another one.
func TestAddresses_FollowTheMachine(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := unreachableCluster(t, dir)
	f, err := parse([]string{"-kubeconfig", kubeconfig, "-node-name", "n", "-root-dir", dir, "-pod-logs-dir", dir}, io.Discard)
	require.NoError(t, err)
	lease := ""
	f.addresses.AddressDetector = node.NewAddressDetector(node.AddressConfig{
		NodeName: "n",
		LookupIP: func(string) ([]net.IP, error) { return nil, errors.New("no DNS") },
		DefaultIP: func(net.IP) (net.IP, error) {
			if lease == "" {
				return nil, errors.New("no default routes found")
			}
			return net.ParseIP(lease), nil
		},
	})
	var text strings.Builder
	log, plugins, accounts := slog.New(slog.NewTextHandler(&text, nil)), pluginDirs{}, &lateAccounts{}
	opts, err := options(&f, log, nil, plugins, accounts)
	require.NoError(t, err)
	assert.Contains(t, text.String(), "node address not found")
	assert.Contains(t, text.String(), "give it with -node-ip")
	c, err := f.cluster(t.Context(), plugins, accounts, log)
	require.NoError(t, err)
	require.NotNil(t, c.serving)
	_, err = agent.New(append(opts, c.opts...)...)
	require.NoError(t, err)

	described, err := f.describe(node.Config{}, log)
	require.NoError(t, err)
	report := func() string {
		addrs, _ := described.StatusConfig("n", fstest.MapFS{}).Addresses() // says that there are none
		ips, hostnames := f.addresses.names()
		return fmt.Sprint(addrs, ips, hostnames)
	}
	assert.Equal(t, "[] [] []", report(), "no certificate is requested yet")
	lease = "10.0.0.5"
	assert.Equal(t, "[{InternalIP 10.0.0.5} {Hostname n}] [10.0.0.5] [n]", report())
	lease = "10.0.0.6"
	assert.Equal(t, "[{InternalIP 10.0.0.6} {Hostname n}] [10.0.0.6] [n]", report())
	lease = ""
	assert.Equal(t, "[] [10.0.0.6] [n]", report(), "the Node and the certificate keep those that they have")
}

func TestAddresses_Given(t *testing.T) {
	for name, tc := range map[string]struct {
		nodeName, nodeIP string
		ips, hostnames   []string
	}{
		"none":                             {"n", "", nil, nil},
		"an address, also before it is up": {"n", "192.0.2.1", []string{"192.0.2.1"}, []string{"n"}},
		"a family only":                    {"n", "::", nil, nil},
		"the node is named for it":         {"192.0.2.1", "192.0.2.1", []string{"192.0.2.1"}, nil},
		"the node is named for another":    {"198.51.100.1", "192.0.2.1", []string{"192.0.2.1", "198.51.100.1"}, nil},
		"one of each family":               {"n", "2001:db8::1, 192.0.2.1", []string{"2001:db8::1", "192.0.2.1"}, []string{"n"}},
	} {
		f, err := parse([]string{"-kubeconfig", "/k", "-node-name", tc.nodeName, "-node-ip", tc.nodeIP}, io.Discard)
		require.NoError(t, err, name)
		ips, hostnames := f.addresses.names()
		assert.Equal(t, tc.ips, ips, name)
		assert.Equal(t, tc.hostnames, hostnames, name)
	}
}

// KU-13: pods and the certificate have the addresses that a cloud has given the Node.
func TestAddresses_OfACloud(t *testing.T) {
	for _, args := range [][]string{{"-cloud-provider", "external", "-manifests", "/m"}, {"-cloud-provider", "aws", "-kubeconfig", "/k"}} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, "-cloud-provider")
	}
	dir := t.TempDir()
	f, err := parse([]string{
		"-kubeconfig", unreachableCluster(t, dir), "-node-name", "n", "-root-dir", dir, "-pod-logs-dir", dir, "-cloud-provider=external", "-node-ip=192.0.2.1",
	}, io.Discard)
	require.NoError(t, err)
	_, err = f.cluster(t.Context(), pluginDirs{}, &lateAccounts{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NotNil(t, f.addresses.ofNode)

	var given []corev1.NodeAddress
	f.addresses.ofNode = func() []corev1.NodeAddress { return given }
	described, err := f.describe(node.Config{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	names := func() string {
		ips, hostnames := f.addresses.names()
		return fmt.Sprint(ips, hostnames)
	}
	assert.Equal(t, []string{"192.0.2.1"}, described.HostIPs(), "of the machine, until there are others")
	assert.Equal(t, "[] []", names())
	given = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n"}}
	assert.Equal(t, []string{"192.0.2.1"}, described.HostIPs())
	assert.Equal(t, "[] []", names(), "a name alone is no reason for a certificate")
	given = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"},
		{Type: corev1.NodeExternalIP, Address: "198.51.100.7"},
		{Type: corev1.NodeInternalDNS, Address: "n.internal"},
		{Type: corev1.NodeInternalIP, Address: "10.1.0.7"},
		{Type: corev1.NodeExternalDNS, Address: "n"},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::7"},
		{Type: corev1.NodeInternalIP, Address: "invalid"},
	}
	assert.Equal(t, []string{"10.1.0.7", "2001:db8::7"}, described.HostIPs(), "of each family one, internal ones first")
	assert.Equal(t, "[10.1.0.7 198.51.100.7 2001:db8::7] [n n.internal]", names())
}

func TestParse_NodeIPs(t *testing.T) {
	for given, want := range map[string]string{
		"here":                            `"here" is not an IP address`,
		"192.0.2.1,":                      `"" is not an IP address`,
		"192.0.2.1,192.0.2.2":             "must be one address, or an IPv4 and an IPv6 address",
		"192.0.2.1,2001:db8::1,192.0.2.2": "must be one address, or an IPv4 and an IPv6 address",
		"192.0.2.1,::":                    ":: only chooses the family; give it alone, or two addresses",
	} {
		_, err := parse([]string{"-manifests", "/m", "-node-ip", given}, io.Discard)
		assert.EqualError(t, err, fmt.Sprintf("-node-ip %q: %s", given, want))
	}
	f, err := parse([]string{"-manifests", "/m", "-node-ip", "192.0.2.1,2001:db8::1"}, io.Discard)
	require.NoError(t, err)
	described, err := f.describe(node.Config{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	assert.Equal(t, []string{"192.0.2.1", "2001:db8::1"}, described.HostIPs(), "without a cluster, too")
	f, err = parse([]string{"-manifests", "/m"}, io.Discard)
	require.NoError(t, err)
	described, err = f.describe(node.Config{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	assert.Len(t, described.HostIPs(), 1)
}
