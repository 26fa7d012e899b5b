package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubelet/config/v1beta1"
)

func TestFlags_KubeletConfiguration(t *testing.T) {
	f, err := parse([]string{
		"-manifest-url", "http://user:s3cret@127.0.0.1/pods", "-manifest-url-header", "Authorization:s3cret", "-runtime-endpoint", "unix:///run/c.sock", "-node-name", "n",
		"-eviction-hard", "memory.available<1Gi,nodefs.available<10%", "-eviction-minimum-reclaim", "memory.available=50Mi", "-kube-reserved", "cpu=100m", "-max-parallel-image-pulls", "1",
		"-cluster-dns", "10.0.0.10,fd00::10", "-listen", "", "-listen-https", "127.0.0.1:10250", "-tls-cert-file", "/c", "-tls-private-key-file", "/k", "-client-ca-file", "/ca", "-v", "4",
	}, io.Discard)
	require.NoError(t, err)
	b, err := json.Marshal(f.kubeletConfiguration())
	require.NoError(t, err)
	assert.NotContains(t, string(b), "s3cret")
	assert.NotContains(t, f.debug.values["manifest-url"], "s3cret")
	assert.NotContains(t, f.debug.values, "event-qps", "it has no effect")
	var got map[string]any
	require.NoError(t, json.Unmarshal(b, &got))
	for field, want := range map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", "staticPodURL": "http://127.0.0.1/pods", "address": "127.0.0.1", "port": 10250.0,
		"tlsCertFile": "/c", "maxParallelImagePulls": 1.0, "clusterDNS": []any{"10.0.0.10", "fd00::10"}, "evictionHard": map[string]any{"memory.available": "1Gi", "nodefs.available": "10%"},
		"evictionMinimumReclaim": map[string]any{"memory.available": "50Mi"}, "kubeReserved": map[string]any{"cpu": "100m"}, "containerRuntimeEndpoint": "unix:///run/c.sock",
		"enableProfilingHandler": false, "enableSystemLogHandler": false, "podPidsLimit": -1.0, "syncFrequency": "1m0s",
	} {
		assert.Equal(t, want, got[field], field)
	}
	assert.NotContains(t, got, "staticPodURLHeader")
}

// Each field that a reload can change is served with its new value, and no other.
func TestFlags_KubeletConfigurationAfterReloads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	configured := func(fields string) *flags {
		require.NoError(t, os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+fields), 0o600))
		f, err := parse([]string{"-config", file, "-manifests", t.TempDir(), "-node-name", "n"}, io.Discard)
		require.NoError(t, err)
		return &f
	}
	object := func(k *v1beta1.KubeletConfiguration) map[string]any {
		o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(k)
		require.NoError(t, err)
		return o
	}
	f := configured("")
	want := object(f.kubeletConfiguration())
	next := configured(`
maxPods: 7
logging: {verbosity: 4, flushFrequency: 9s}
oomScoreAdj: -1
evictionSoft: {memory.available: 1Gi}
evictionSoftGracePeriod: {memory.available: 1m}
evictionMinimumReclaim: {memory.available: 1Mi}
evictionMaxPodGracePeriod: 20
evictionPressureTransitionPeriod: 1m
imageGCHighThresholdPercent: 90
imageGCLowThresholdPercent: 70
imageMinimumGCAge: 1h
imageMaximumGCAge: 2h
shutdownGracePeriod: 10s
shutdownGracePeriodCriticalPods: 5s
`)
	byPriority := configured("shutdownGracePeriodByPodPriority: [{priority: 5, shutdownGracePeriodSeconds: 6}]\n")
	for _, r := range (&daemon{}).reloads(nil) {
		for _, path := range r.paths {
			from := next.config.effective
			if path == "shutdownGracePeriodByPodPriority" { // not beside the other periods
				from = byPriority.config.effective
			}
			require.NotEqual(t, f.config.effective.Text(path), from.Text(path), path)
			f.config.enforce(path, from)
			keys := strings.Split(path, ".")
			value, found, err := unstructured.NestedFieldCopy(object(from.Kubelet()), keys...)
			require.NoError(t, err)
			require.True(t, found, path)
			require.NoError(t, unstructured.SetNestedField(want, value, keys...))
		}
	}
	assert.Equal(t, want, object(f.kubeletConfiguration()))
}
