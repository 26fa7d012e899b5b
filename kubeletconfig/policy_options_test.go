package kubeletconfig_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/topology"
)

func TestConfig_PolicyOptions(t *testing.T) {
	static := []string{"-cpu-manager-policy=static", "-reserved-cpus=0"}
	c := with(t, append(static, "-cpu-manager-policy-options=full-pcpus-only=true,strict-cpu-reservation=1", "-cpu-manager-policy-options=distribute-cpus-across-numa=true,prefer-align-cpus-by-uncorecache=false",
		"-topology-manager-policy-options=prefer-closest-numa-nodes=true,max-allowable-numa-nodes=12")...)
	require.NoError(t, c.Validate())
	cpus, err := c.CPUManagerOptions()
	require.NoError(t, err)
	assert.Equal(t, cpumanager.Options{FullPCPUsOnly: true, StrictCPUReservation: true, DistributeCPUsAcrossNUMA: true}, cpus)
	nodes, err := c.TopologyManagerOptions()
	require.NoError(t, err)
	assert.Equal(t, topology.Options{PreferClosestNUMANodes: true, MaxAllowableNUMANodes: 12}, nodes)

	c, err = kubeletconfig.Load(file(t, "kubelet.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: 0-1\ncpuManagerPolicyOptions: {prefer-align-cpus-by-uncorecache: \"true\"}\n"), "")
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	cpus, err = c.CPUManagerOptions()
	require.NoError(t, err)
	assert.Equal(t, cpumanager.Options{PreferAlignCPUsByUncoreCache: true}, cpus)
	assert.Empty(t, with(t).Kubelet().CPUManagerPolicyOptions)

	for _, tt := range []struct{ options, want string }{
		{"-cpu-manager-policy-options=full-pcpus=true", `cpuManagerPolicyOptions: unknown option "full-pcpus"; there are distribute-cpus-across-numa, full-pcpus-only, prefer-align-cpus-by-uncorecache, strict-cpu-reservation`},
		{"-cpu-manager-policy-options=align-by-socket=true", "cpuManagerPolicyOptions: align-by-socket is not supported: it is alpha in Kubernetes; remove it"},
		{"-cpu-manager-policy-options=distribute-cpus-across-cores=false", "cpuManagerPolicyOptions: distribute-cpus-across-cores is not supported: it is alpha"},
		{"-cpu-manager-policy-options=full-pcpus-only=yes", `cpuManagerPolicyOptions: full-pcpus-only: "yes" must be true or false`},
		{"-cpu-manager-policy-options=prefer-align-cpus-by-uncorecache=true,distribute-cpus-across-numa=true", "prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa exclude each other"},
		{"-topology-manager-policy-options=align-by-socket=true", `topologyManagerPolicyOptions: unknown option "align-by-socket"; there are max-allowable-numa-nodes, prefer-closest-numa-nodes`},
		{"-topology-manager-policy-options=prefer-closest-numa-nodes=", `topologyManagerPolicyOptions: prefer-closest-numa-nodes: "" must be true or false`},
		{"-topology-manager-policy-options=max-allowable-numa-nodes=7", "topologyManagerPolicyOptions: max-allowable-numa-nodes: 7 must be at least 8"},
		{"-topology-manager-policy-options=max-allowable-numa-nodes=0", "topologyManagerPolicyOptions: max-allowable-numa-nodes: 0 must be at least 8"},
		{"-topology-manager-policy-options=max-allowable-numa-nodes=many", `topologyManagerPolicyOptions: max-allowable-numa-nodes: "many" must be a whole number`},
	} {
		require.ErrorContains(t, with(t, append(static, tt.options)...).Validate(), tt.want)
	}
	require.ErrorContains(t, with(t, "-cpu-manager-policy-options=full-pcpus-only=false").Validate(), "cpuManagerPolicyOptions: need cpuManagerPolicy static")
	require.ErrorContains(t, with(t, append(static, "-feature-gates=CPUManagerPolicyBetaOptions=false", "-cpu-manager-policy-options=distribute-cpus-across-numa=true")...).Validate(),
		"cpuManagerPolicyOptions: distribute-cpus-across-numa needs featureGates[CPUManagerPolicyBetaOptions]; remove one of both")
	require.NoError(t, with(t, append(static, "-feature-gates=CPUManagerPolicyBetaOptions=false", "-cpu-manager-policy-options=full-pcpus-only=true")...).Validate())
	require.NoError(t, with(t, "-topology-manager-policy-options=max-allowable-numa-nodes=64").Validate(), "without effect, as for a kubelet")
}

// Reserved CPUs are chosen by the options too, but need not be whole cores.
func TestConfig_ReservedCPUsByOptions(t *testing.T) {
	var machine topology.Topology // two nodes of two caches, each of a core of two threads
	for id := range 8 {
		machine.CPUs = append(machine.CPUs, topology.CPU{ID: id, Core: id / 2, Node: id / 4, UncoreCache: id / 2})
	}
	for option, want := range map[string]string{
		"full-pcpus-only=true":                  "0-4",
		"distribute-cpus-across-numa=true":      "0-2,4-5",
		"prefer-align-cpus-by-uncorecache=true": "0-4",
	} {
		c := with(t, "-cpu-manager-policy=static", "-kube-reserved=cpu=5", "-cpu-manager-policy-options="+option)
		got, err := c.ReservedCPUs(machine)
		require.NoError(t, err)
		assert.Equal(t, want, got.String(), option)
	}
	_, err := with(t, "-kube-reserved=cpu=1", "-cpu-manager-policy-options=x=y").ReservedCPUs(machine)
	require.ErrorContains(t, err, "unknown option")
}
