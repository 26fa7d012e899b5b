package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestKubeAPIFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-manifests", "/m", "-kube-api", "127.0.0.1:6443"},
		{"-kube-api", "localhost:6443", "-kube-api-writable"},
	} {
		f, err := parse(args, io.Discard)
		require.NoError(t, err, args)
		api := newKubeAPI(&f, f.logger(io.Discard))
		assert.Equal(t, f.kubeAPI.writable, api.store != nil)
		assert.Len(t, api.options(), map[bool]int{false: 1, true: 3}[f.kubeAPI.writable])
	}
	for message, args := range map[string][]string{
		"-kube-api-writable needs -kube-api":                 {"-manifests", "/m", "-kube-api-writable"},
		`-kube-api "6443": must be host:port`:                {"-manifests", "/m", "-kube-api", "6443"},
		`-kube-api "127.0.0.1:0": must be host:port`:         {"-manifests", "/m", "-kube-api", "127.0.0.1:0"},
		"other machines can reach this address":              {"-manifests", "/m", "-kube-api", "0.0.0.0:6443"},
		"no source of pods; give":                            {"-kube-api", "127.0.0.1:6443"},
		"-kube-api-writable: with -kubeconfig the pods are ": {"-kubeconfig", "/k", "-kube-api", "127.0.0.1:6443", "-kube-api-writable"},
	} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, message)
	}
	var none *kubeAPI
	assert.Empty(t, none.options())
	assert.Equal(t, logRecorder{}, none.recorder(logRecorder{}))
}

// What the kubelet's API has is below nodes/proxy, as with a cluster.
func TestKubeAPI_ProxiesToTheNode(t *testing.T) {
	dir := t.TempDir()
	f, err := parse([]string{
		"-root-dir", dir, "-pod-logs-dir", filepath.Join(dir, "logs"), "-hostname-override", "n", "-listen", "", "-kube-api", freeAddr(t), "-kube-api-writable",
		"-enable-system-log-handler", "-enable-system-log-query",
	}, io.Discard)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, f, io.Discard) }()
	kubeconfig := filepath.Join(dir, "kube-api", "kubeconfig")
	require.Eventually(t, func() bool { _, err := os.Stat(kubeconfig); return err == nil }, time.Minute, 20*time.Millisecond)
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	get := func(path string) string {
		b, err := client.CoreV1().RESTClient().Get().RequestURI("/api/v1/nodes/n/proxy" + path).DoRaw(ctx)
		require.NoError(t, err, path)
		return string(b)
	}
	require.Eventually(t, func() bool { return client.CoreV1().RESTClient().Get().AbsPath("/version").Do(ctx).Error() == nil }, time.Minute, 20*time.Millisecond)
	for path, want := range map[string]string{
		"/stats/summary": `"nodeName": "n"`, "/metrics": "kubelet_desired_pods", "/configz": `"kind": "KubeletConfiguration"`, "/pods": `"kind": "PodList"`,
		"/runningpods/": "PodList", "/healthz?verbose": "syncloop", "/logs/?query=no-such-service": "log of no-such-service",
	} {
		assert.Contains(t, get(path), want, path)
	}
	cancel()
	require.NoError(t, <-ended)
}
