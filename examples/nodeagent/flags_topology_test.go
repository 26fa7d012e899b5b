package main

import (
	"bytes"
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
	} {
		_, err := parse(append([]string{"-manifests", "/m"}, tt.args...), &bytes.Buffer{})
		require.ErrorContains(t, err, tt.want)
	}
	_, err := parse([]string{
		"-manifests", "/m", "-cpu-manager-policy=static", "-reserved-cpus=0", "-memory-manager-policy=Static", "-topology-manager-policy=single-numa-node",
	}, &bytes.Buffer{})
	require.NoError(t, err)
	_, err = parse([]string{"-manifests", "/m", "-cpu-manager-policy=static", "-kube-reserved=cpu=500m"}, &bytes.Buffer{})
	require.NoError(t, err)
	_, err = parse([]string{"-manifests", "/m", "-device-plugin-dir=/d", "-topology-manager-policy=best-effort"}, &bytes.Buffer{})
	require.NoError(t, err)
}
