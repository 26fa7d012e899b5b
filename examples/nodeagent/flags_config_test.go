package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/server"
)

// kubeletConfig writes a KubeletConfiguration and returns the flag that names it.
func kubeletConfig(t *testing.T, fields string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+fields), 0o600))
	return "-config=" + path
}

// ND-3: a node keeps the configuration of its kubelet.
func TestConfig_OfAKubelet(t *testing.T) {
	config := kubeletConfig(t, `
staticPodPath: manifests
maxPods: 20
podPidsLimit: 0
clusterDNS: [10.96.0.10]
evictionHard: {memory.available: 1Gi}
registerWithTaints: [{key: edge, effect: NoSchedule}]
serializeImagePulls: false
cgroupsPerQOS: false
enforceNodeAllocatable: []
logging: {format: json, verbosity: 4}
rotateCertificates: false
resolvConf: /run/resolv.conf
`)
	f, err := parse([]string{config, "-max-pods=30"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(filepath.Dir(f.config.file), "manifests"), f.manifests)
	assert.Equal(t, "unix:///run/containerd/containerd.sock", f.runtimeEndpoint, "pods are not simulated")
	assert.Equal(t, "127.0.0.1:10248", f.listen.addr)
	assert.Empty(t, f.listen.https, "nothing to identify clients with")
	assert.Equal(t, "json", f.logFormat)
	assert.Equal(t, 4, f.verbosity)
	s, err := f.config.effective.Settings(capacityOfThisNode(t, &f))
	require.NoError(t, err)
	assert.Equal(t, 30, s.Node.MaxPods, "flags take precedence")
	assert.Zero(t, s.Node.PodPidsLimit)
	assert.Equal(t, []string{"10.96.0.10"}, s.Node.ClusterDNS)
	assert.True(t, s.Node.DisableCgroups)
	assert.Equal(t, "/run/resolv.conf", s.Node.ResolvConf)
	assert.Len(t, s.Eviction.Thresholds, 1)
	assert.Greater(t, s.CRI.Pulls.MaxParallel, 1000)
	assert.Equal(t, "edge", f.config.effective.Kubelet().RegisterWithTaints[0].Key)
	var log bytes.Buffer
	f.config.notices(slog.New(slog.NewTextHandler(&log, nil)))
	assert.Contains(t, log.String(), "rotateCertificates has no effect")
}

// 0 and negative numbers are no bound, as with a kubelet.
func TestConfig_NoBoundOnProcesses(t *testing.T) {
	for _, limit := range []string{"-1", "0", "-2"} {
		for _, args := range [][]string{{kubeletConfig(t, "staticPodPath: /m\npodPidsLimit: "+limit+"\n")}, {"-manifests=/m", "-pod-max-pids=" + limit}} {
			f, err := parse(args, io.Discard)
			require.NoError(t, err, limit)
			s, err := f.config.effective.Settings(capacityOfThisNode(t, &f))
			require.NoError(t, err, limit)
			assert.Zero(t, s.Node.PodPidsLimit, limit)
		}
	}
}

func capacityOfThisNode(t *testing.T, f *flags) corev1.ResourceList {
	t.Helper()
	f.rootDir = t.TempDir()
	c, err := f.capacity()
	require.NoError(t, err)
	return c
}

// What kubeadm, a cloud and an edge distribution write.
func TestConfig_NodesThatExist(t *testing.T) {
	for _, name := range []string{"kubeadm.yaml", "cloud.json", "edge.yaml"} {
		config := "-config=" + filepath.Join("..", "..", "kubeletconfig", "testdata", name)
		f, err := parse([]string{config, "-kubeconfig=/k", "-node-name=n"}, io.Discard)
		require.NoError(t, err, name)
		assert.Equal(t, "0.0.0.0:10250", f.listen.https, name)
		assert.Equal(t, "127.0.0.1:10248", f.listen.addr, name)
		assert.False(t, f.config.noServer)
	}
	f, err := parse([]string{"-config=" + filepath.Join("..", "..", "kubeletconfig", "testdata", "kubeadm.yaml")}, io.Discard)
	require.NoError(t, err, "without a cluster")
	assert.Empty(t, f.listen.https)
	assert.True(t, f.config.noServer)
}

func TestConfig_Server(t *testing.T) {
	const fields = `
staticPodPath: /m
address: 127.0.0.1
port: 10350
healthzPort: 0
tlsCertFile: /c
tlsPrivateKeyFile: /k
tlsMinVersion: VersionTLS13
authentication: {x509: {clientCAFile: /ca}}
enableDebuggingHandlers: false
streamingConnectionIdleTimeout: 5m
`
	f, err := parse([]string{kubeletConfig(t, fields)}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:10350", f.listen.https)
	assert.Empty(t, f.listen.addr)
	certificates := &tls.Config{ServerName: "kept", MinVersion: tls.VersionTLS12}
	cfg := server.Config{TLS: certificates, Logs: logs{}, LogDir: "/var/log", Profiling: true, RunningPods: func(context.Context) ([]*corev1.Pod, error) { return nil, nil }}
	require.NoError(t, f.config.limit(&cfg))
	assert.Nil(t, cfg.Logs)
	assert.Nil(t, cfg.RunningPods, "nor are those served that have flags of their own")
	assert.Empty(t, cfg.LogDir)
	assert.False(t, cfg.Profiling)
	assert.Equal(t, 5*time.Minute, cfg.StreamIdleTimeout)
	assert.Equal(t, uint16(tls.VersionTLS13), cfg.TLS.MinVersion)
	assert.Equal(t, "kept", cfg.TLS.ServerName)
	assert.Equal(t, uint16(tls.VersionTLS12), certificates.MinVersion, "not changed for others")

	f, err = parse([]string{kubeletConfig(t, fields+"enableServer: false\n")}, io.Discard)
	require.NoError(t, err)
	assert.Empty(t, f.listen.https)
	f, err = parse([]string{kubeletConfig(t, fields), "-listen-https=127.0.0.1:1", "-listen=127.0.0.1:2"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:1", f.listen.https)
	assert.Equal(t, "127.0.0.1:2", f.listen.addr)
	_, err = parse([]string{kubeletConfig(t, fields+"authorization: {mode: Webhook}\n")}, io.Discard)
	assert.ErrorContains(t, err, "authorization.mode: Webhook needs -kubeconfig")
}

type logs struct{ server.LogReader }

func TestConfig_Bad(t *testing.T) {
	_, err := parse([]string{"-config=/no/such/file"}, io.Discard)
	assert.ErrorContains(t, err, "-config: /no/such/file: no such file")
	_, err = parse([]string{kubeletConfig(t, "maxPods: -1\nreadOnlyPort: 10255\n")}, io.Discard)
	assert.ErrorContains(t, err, "-config: maxPods: -1 must be")
	assert.ErrorContains(t, err, "readOnlyPort: \"10255\" is not supported")
}
