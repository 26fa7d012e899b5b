package main

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParse_AcceptsNamesOfTheKubelet(t *testing.T) {
	f, err := parse([]string{
		"--container-runtime-endpoint=unix:///run/c.sock", "-image-service-endpoint", "unix:///run/i.sock", "--pod-manifest-path", "/m",
		"--hostname-override=edge", "--logging-format=json", "--kube-reserved=memory=1Mi", "--system-reserved=cpu=10m", "--pod-max-pids=100", "--pods-per-core=10",
		"--seccomp-default", "--cpu-cfs-quota=false", "--allowed-unsafe-sysctls=net.*", "--manifest-url=http://h/x", "--manifest-url-header=a:1,b:2", "--manifest-url-header=a:3",
	}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "unix:///run/c.sock", f.runtimeEndpoint)
	assert.Equal(t, "unix:///run/i.sock", f.imageEndpoint)
	assert.Equal(t, "/m", f.manifests)
	assert.Equal(t, "edge", f.nodeName)
	assert.Equal(t, "json", f.logFormat)
	assert.Equal(t, nodeFlags{
		kubeReserved: "memory=1Mi", systemReserved: "cpu=10m", maxPods: 110, podsPerCore: 10, podMaxPids: 100, seccompDefault: true, cpuQuotaPeriod: defaultCPUQuota,
	}, f.node)
	configured, err := f.config.effective.Settings(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("4Gi")})
	require.NoError(t, err)
	assert.True(t, configured.CRI.Node.SeccompDefault)
	assert.True(t, configured.CRI.Node.NoCPUQuota)
	assert.Equal(t, 2, configured.CRI.Pulls.MaxParallel)
	assert.Equal(t, 40, configured.Node.MaxPods)
	assert.Equal(t, http.Header{"A": {"1", "3"}, "B": {"2"}}, f.header())
}

// Each flag of a kubelet is supported, or the error says what to do.
func TestParse_ExplainsUnsupportedFlagsOfTheKubelet(t *testing.T) {
	for _, arg := range []string{
		"--address=0.0.0.0", "--read-only-port=0", "--feature-gates=A=true", "--fail-swap-on", "--node-status-update-frequency=1s",
		"--serialize-image-pulls=false", "--event-qps=1", "--cpu-manager-policy-options=x=y", "--rotate-certificates",
	} {
		_, err := parse([]string{"-manifests", "/m", arg}, io.Discard)
		assert.ErrorContains(t, err, "is a flag of the kubelet that nodeagent does not support; ", arg)
		assert.NotContains(t, err.Error(), "\n", "nothing else is wrong")
	}
	_, err := parse([]string{"--event-qps", "1", "--fail-swap-on", "--nonsense"}, io.Discard)
	for _, want := range []string{"-event-qps is a flag", "-fail-swap-on is a flag", "not defined: -nonsense; see -help"} {
		assert.ErrorContains(t, err, want)
	}
	_, err = parse([]string{"--pod-manifest-path=/m", "-manifests=/n"}, io.Discard)
	assert.EqualError(t, err, "-pod-manifest-path and -manifests are the same flag; give one of them")
	for names := range unsupportedFlags() {
		assert.NotEmpty(t, unsupportedFlags()[names])
	}
}

func TestParse_HelpShowsSupportedFlagsAlone(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"-help"}, &out)
	require.ErrorIs(t, err, flag.ErrHelp)
	assert.Contains(t, out.String(), "-kube-reserved")
	assert.Contains(t, out.String(), "-pod-manifest-path is -manifests")
	assert.NotContains(t, out.String(), "rotate-certificates")
}

func TestParse_Version(t *testing.T) {
	f, err := parse([]string{"--version"}, io.Discard)
	require.NoError(t, err)
	assert.True(t, f.version)
	assert.Contains(t, version(), "nodeagent ")
}

func TestParse_HidesValuesOfHeaders(t *testing.T) {
	_, err := parse([]string{"-manifests", "/m", "-manifest-url-header", "a:b,hunter2"}, io.Discard)
	require.EqualError(t, err, "-manifest-url-header: entry 2 must be name:value")
}
