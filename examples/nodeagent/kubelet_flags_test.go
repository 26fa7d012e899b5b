package main

import (
	"bytes"
	"crypto/tls"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/server"
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
		kubeReserved: list{"memory=1Mi", true}, systemReserved: list{"cpu=10m", true}, maxPods: 110, podsPerCore: 10, podMaxPids: 100, seccompDefault: true, cpuQuotaPeriod: defaultCPUQuota,
	}, f.node)
	configured, err := f.config.effective.Settings(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("4Gi")})
	require.NoError(t, err)
	assert.True(t, configured.CRI.Node.SeccompDefault)
	assert.True(t, configured.CRI.Node.NoCPUQuota)
	assert.Equal(t, 2, configured.CRI.Pulls.MaxParallel)
	assert.Equal(t, 40, configured.Node.MaxPods)
	assert.Equal(t, http.Header{"A": {"1", "3"}, "B": {"2"}}, f.header())
}

// A service has several sources of flags: a list that is given again is completed, and a later value of a name counts.
func TestParse_ListsGivenSeveralTimes(t *testing.T) {
	f, err := parse([]string{
		"-manifests=/m", "-node-labels=a=1,b=1", "-node-labels=b=2, example.com/c = 3,", "-cluster-dns=10.0.0.10", "-cluster-dns=fd00::10", "-allowed-unsafe-sysctls=net.*", "-allowed-unsafe-sysctls=kernel.msg*",
		"-kube-reserved=cpu=100m,memory=1Gi", "-kube-reserved=cpu=200m", "-system-reserved=pid=10", "-system-reserved=cpu=1",
	}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a": "1", "b": "2", "example.com/c": "3"}, f.labels())
	k := f.config.effective.Kubelet()
	assert.Equal(t, []string{"10.0.0.10", "fd00::10"}, k.ClusterDNS)
	assert.Equal(t, []string{"net.*", "kernel.msg*"}, k.AllowedUnsafeSysctls)
	assert.Equal(t, map[string]string{"cpu": "200m", "memory": "1Gi"}, k.KubeReserved)
	assert.Equal(t, map[string]string{"cpu": "1", "pid": "10"}, k.SystemReserved)
}

// Each flag of a kubelet is supported, or the error says what to do.
func TestParse_ExplainsUnsupportedFlagsOfTheKubelet(t *testing.T) {
	for _, arg := range []string{
		"--address=0.0.0.0", "--read-only-port=0", "--fail-swap-on", "--pod-cidr=10.0.0.0/24",
		"--event-qps=1", "--rotate-certificates", "--max-open-files=9", "--lock-file=/l", "--contention-profiling",
		"--hairpin-mode=none", "--enable-controller-attach-detach", "--fail-cgroupv1=false", "--runonce",
	} {
		_, err := parse([]string{"-manifests", "/m", arg}, io.Discard)
		assert.ErrorContains(t, err, "is a flag of the kubelet that nodeagent does not support; ", arg)
		assert.NotContains(t, err.Error(), "\n", "nothing else is wrong")
	}
	_, err := parse([]string{"--event-qps", "1", "--fail-swap-on", "--nonsense"}, io.Discard)
	for _, want := range []string{"-event-qps is a flag", "-fail-swap-on is a flag", "not defined: -nonsense; see -help"} {
		assert.ErrorContains(t, err, want)
	}
	_, err = parse([]string{"-manifests", "/m", "--hairpin-mode=none"}, io.Discard)
	assert.EqualError(t, err, "-hairpin-mode is a flag of the kubelet that nodeagent does not support; remove it; the network of pods is the runtime's")
	_, err = parse([]string{"-kubeconfig", "/k", "--anonymous-auth=false", "--authorization-mode=Webhook", "--rotate-server-certificates"}, io.Discard)
	for _, want := range []string{"With -kubeconfig the cluster decides who clients are", "the certificate of the server is requested from the cluster"} {
		assert.ErrorContains(t, err, want)
	}
	_, err = parse([]string{"--pod-manifest-path=/m", "-manifests=/n"}, io.Discard)
	assert.EqualError(t, err, "-pod-manifest-path and -manifests are the same flag; give one of them")
	for names := range unsupportedFlags() {
		assert.NotEmpty(t, unsupportedFlags()[names])
	}
}

// Flags without a counterpart of their own set the field of the configuration, over a file.
func TestParse_FlagsOfFields(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nenforceNodeAllocatable: [pods]\nkubeAPIQPS: 7\ntlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n"), 0o600))
	f, err := parse([]string{
		"-config", config, "-manifests", "/m", "--enforce-node-allocatable=none", "--cgroups-per-qos=false", "--serialize-image-pulls", "--runtime-request-timeout=9s", "--kube-api-burst=3",
		"--provider-id=x://1", "--node-status-update-frequency=3s", "--node-status-max-images=-1", "--streaming-connection-idle-timeout=5m", "--enable-debugging-handlers=false", "--tls-min-version=VersionTLS13", "--feature-gates=KubeletEnsureSecretPulledImages=false",
	}, io.Discard)
	require.NoError(t, err)
	k := f.config.effective.Kubelet()
	assert.Equal(t, []any{int32(7), int32(3), "x://1"}, []any{*k.KubeAPIQPS, k.KubeAPIBurst, k.ProviderID})
	assert.Equal(t, []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}, k.TLSCipherSuites)
	var limited server.Config
	limited.Streams, limited.Logs = new(agent.Agent), new(agent.Agent)
	require.NoError(t, f.config.limit(&limited))
	assert.Equal(t, 5*time.Minute, limited.StreamIdleTimeout)
	assert.Nil(t, limited.Streams)
	s, err := f.config.effective.Settings(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi")})
	require.NoError(t, err)
	assert.True(t, s.Node.DisableCgroups)
	assert.Empty(t, s.Node.EffectivePodsCgroupLimits())
	assert.Equal(t, 9*time.Second, s.CRI.Timeout)
	assert.Equal(t, 1, s.CRI.Pulls.MaxParallel)
	assert.Equal(t, 3*time.Second, k.NodeStatusUpdateFrequency.Duration)
	assert.Equal(t, node.AllImages, s.Node.MaxImages)
	assert.Equal(t, cri.NeverVerify, s.CRI.ImageAccess.Policy)
	encrypted, err := f.config.effective.TLS()
	require.NoError(t, err)
	assert.Equal(t, uint16(tls.VersionTLS13), encrypted.MinVersion)

	for arg, want := range map[string]string{
		"--enforce-node-allocatable=kube-reserved": "the cgroups of others are never changed", "--kube-api-qps=many": `-kube-api-qps: "many" must be a whole number`,
		"--runtime-request-timeout=-1s": "runtimeRequestTimeout: -1s must be positive (runtimeRequestTimeout is -runtime-request-timeout)",
		"--cgroups-per-qos=false":       `enforceNodeAllocatable: "pods" needs cgroupsPerQOS true; set it to none (cgroupsPerQOS is -cgroups-per-qos, enforceNodeAllocatable is -enforce-node-allocatable)`,
	} {
		_, err := parse([]string{"-manifests", "/m", arg}, io.Discard)
		require.ErrorContains(t, err, want)
	}
}

func TestParse_HelpShowsSupportedFlagsAlone(t *testing.T) {
	var out bytes.Buffer
	_, err := parse([]string{"-help"}, &out)
	require.ErrorIs(t, err, flag.ErrHelp)
	assert.Contains(t, out.String(), "-kube-reserved")
	assert.Contains(t, out.String(), "nodeagent COMMAND [flags], on a running agent: attach, drain, evict, exec, get, logs, port-forward, restart\n")
	assert.Contains(t, out.String(), "-pod-manifest-path is -manifests")
	assert.NotContains(t, out.String(), "rotate-certificates")
}

func TestParse_Version(t *testing.T) {
	f, err := parse([]string{"--version"}, io.Discard)
	require.NoError(t, err)
	assert.True(t, f.version)
	assert.Contains(t, version(), "nodeagent ")
}

func TestParse_HidesSecrets(t *testing.T) {
	_, err := parse([]string{"-manifests", "/m", "-manifest-url-header", "a:b,hunter2"}, io.Discard)
	require.EqualError(t, err, "-manifest-url-header: entry 2 must be name:value")
	for _, url := range []string{"http://user:hunter2@h/%zz", "//user:hunter2@h/pods"} {
		_, err = parse([]string{"-manifest-url", url}, io.Discard)
		require.EqualError(t, err, "-manifest-url: must be an http or https URL")
	}
}
