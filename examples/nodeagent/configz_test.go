package main

import (
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
