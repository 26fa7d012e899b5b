package kubeletconfig_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/topology"
)

// The static policy needs no list of CPUs: what is reserved of cpu says how many.
func TestConfig_ReservedCPUs(t *testing.T) {
	var machine topology.Topology // two cores of two threads
	for id := range 4 {
		machine.CPUs = append(machine.CPUs, topology.CPU{ID: id, Core: id % 2})
	}
	for args, want := range map[string]string{
		"-kube-reserved=cpu=500m":                                  "0",
		"-system-reserved=cpu=1":                                   "0",
		"-kube-reserved=cpu=600m -system-reserved=cpu=500m":        "0,2",
		"-kube-reserved=cpu=4":                                     "0-3",
		"-kube-reserved=cpu=3 -reserved-cpus=1":                    "1",
		"-kube-reserved=memory=1Gi -reserved-cpus=2-3":             "2-3",
		"-kube-reserved=cpu=1,memory=1Gi -system-reserved=cpu=0.1": "0,2",
	} {
		c := with(t, strings.Fields("-cpu-manager-policy=static "+args)...)
		require.NoError(t, c.Validate(), args)
		got, err := c.ReservedCPUs(machine)
		require.NoError(t, err, args)
		assert.Equal(t, want, got.String(), args)
	}
	_, err := with(t, "-kube-reserved=cpu=4100m").ReservedCPUs(machine)
	require.ErrorContains(t, err, "kubeReserved and systemReserved have 4100m of cpu, and 4 CPUs are online")
	require.Error(t, with(t, "-cpu-manager-policy=static", "-kube-reserved=memory=1Gi").Validate())
	require.Error(t, with(t, "-cpu-manager-policy=static", "-kube-reserved=cpu=0").Validate())
}
