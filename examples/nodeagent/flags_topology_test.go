package main

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse_TopologyFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-cpu-manager-policy=dynamic"}, `-cpu-manager-policy "dynamic": must be none or static`},
		{[]string{"-cpu-manager-policy=static"}, "cpuManagerPolicy: static needs CPUs on which all others run: reservedSystemCPUs, or cpu of kubeReserved or systemReserved (cpuManagerPolicy is -cpu-manager-policy"},
		{[]string{"-reserved-cpus=a"}, `-reserved-cpus: invalid list "a"`},
		{[]string{"-memory-manager-policy=static"}, `-memory-manager-policy "static": must be None or Static`},
		{[]string{"-memory-manager-policy=Static"}, "-memory-manager-policy Static needs -cpu-manager-policy static"},
		{[]string{"-topology-manager-policy=near"}, `-topology-manager-policy: invalid policy "near"`},
		{[]string{"-topology-manager-scope=near"}, `-topology-manager-scope: invalid scope "near"`},
		{[]string{"-topology-manager-policy=restricted"}, "-topology-manager-policy restricted needs -cpu-manager-policy static or -device-plugin-dir"},
		{[]string{"-reserved-memory=memory=1Gi"}, `-reserved-memory: "memory=1Gi" must be the number of a NUMA node`},
		{[]string{"-reserved-memory=0:cpu=1"}, `reservedMemory: NUMA node 0: "cpu" must be memory, or hugepages-<size> (reservedMemory is -reserved-memory)`},
		{[]string{"-cpu-manager-policy-options=full-pcpus-only=true"}, "cpuManagerPolicyOptions: need cpuManagerPolicy static; remove them, or set that (cpuManagerPolicy is -cpu-manager-policy, cpuManagerPolicyOptions is -cpu-manager-policy-options)"},
		{[]string{"-cpu-manager-policy=static", "-reserved-cpus=0", "-cpu-manager-policy-options=align-by-socket=true"}, "align-by-socket is not supported: it is alpha in Kubernetes"},
		{[]string{"-topology-manager-policy-options=max-allowable-numa-nodes=2"}, "max-allowable-numa-nodes: 2 must be at least 8 (topologyManagerPolicyOptions is -topology-manager-policy-options)"},
	} {
		_, err := parse(append([]string{"-manifests", "/m"}, tt.args...), &bytes.Buffer{})
		require.ErrorContains(t, err, tt.want)
	}
	_, err := parse([]string{
		"-manifests", "/m", "-cpu-manager-policy=static", "-reserved-cpus=0", "-memory-manager-policy=Static", "-topology-manager-policy=single-numa-node",
		"-cpu-manager-policy-options=full-pcpus-only=true", "--cpu-manager-policy-options=strict-cpu-reservation=true", "--topology-manager-policy-options=prefer-closest-numa-nodes=false",
	}, &bytes.Buffer{})
	require.NoError(t, err)
	_, err = parse([]string{"-manifests", "/m", "-cpu-manager-policy=static", "-kube-reserved=cpu=500m"}, &bytes.Buffer{})
	require.NoError(t, err)
	_, err = parse([]string{"-manifests", "/m", "-device-plugin-dir=/d", "-topology-manager-policy=best-effort"}, &bytes.Buffer{})
	require.NoError(t, err)
}

// What is reserved of NUMA nodes is checked against the machine at the start.
func TestFlags_ReservedMemory(t *testing.T) {
	static := []string{"-manifests", "/m", "-cpu-manager-policy=static", "-reserved-cpus=0", "-memory-manager-policy=Static", "-eviction-hard=memory.available<100Mi"}
	f, err := parse(append(static, "-reserved-memory=0:memory=60Mi", "-reserved-memory=64:memory=40Mi"), &bytes.Buffer{})
	require.NoError(t, err)
	_, err = f.config.effective.Settings(capacityOfThisNode(t, &f))
	require.NoError(t, err)
	machine, err := detectTopology()
	require.NoError(t, err)
	_, err = f.cpus(machine, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "NUMA node 64 does not exist")
	f, err = parse(append(static, "-reserved-memory=0:memory=60Mi"), &bytes.Buffer{})
	require.NoError(t, err)
	_, err = f.config.effective.Settings(capacityOfThisNode(t, &f))
	require.ErrorContains(t, err, "reservedMemory: the memory of all NUMA nodes is 60Mi")
	f, err = parse(append(static, "-reserved-memory=0:memory=100Mi"), &bytes.Buffer{})
	require.NoError(t, err)
	cpus, err := f.cpus(machine, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	if all := machine.Memory[0]; all > 0 {
		require.Equal(t, all-100<<20, cpus.AllocatableMemory()[0])
	}
}
