package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

func TestPodIPs(t *testing.T) {
	v4, v6 := []string{"192.0.2.1", "2001:db8::1"}, []string{"2001:db8::1", "192.0.2.1"}
	for name, tt := range map[string]struct{ ips, node, want []string }{
		"none":                            {nil, v4, nil},
		"one":                             {[]string{"10.0.0.1"}, v4, []string{"10.0.0.1"}},
		"the only one is of the other":    {[]string{"fd00::1"}, v4, []string{"fd00::1"}},
		"both":                            {[]string{"10.0.0.1", "fd00::1"}, v4, []string{"10.0.0.1", "fd00::1"}},
		"the node's family is first":      {[]string{"fd00::1", "10.0.0.1"}, v4, []string{"10.0.0.1", "fd00::1"}},
		"also if that is IPv6":            {[]string{"10.0.0.1", "fd00::1"}, v6, []string{"fd00::1", "10.0.0.1"}},
		"IPv4 for a node without address": {[]string{"fd00::1", "10.0.0.1"}, nil, []string{"10.0.0.1", "fd00::1"}},
		"and for one that is none":        {[]string{"fd00::1", "10.0.0.1"}, []string{""}, []string{"10.0.0.1", "fd00::1"}},
		"one of each family":              {[]string{"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"}, v4, []string{"10.0.0.1", "fd00::1"}},
		"several of one":                  {[]string{"10.0.0.2", "10.0.0.1"}, v4, []string{"10.0.0.2"}},
		"in their usual notation":         {[]string{"FD00:0::1", "::ffff:10.0.0.1"}, v4, []string{"10.0.0.1", "fd00::1"}},
		"what is no address":              {[]string{"", "localhost", "fe80::1%eth0", "10.0.0.1"}, v4, []string{"10.0.0.1"}},
	} {
		assert.Equal(t, tt.want, runtime.PodIPs(tt.ips, tt.node), name)
	}
}
