package main

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/kubetest"
)

// The provider's node is Ready in a cluster, and runs a pod of it and a static one.
func TestRun(t *testing.T) {
	fake := kubetest.NewFake(t)
	server := httptest.NewTLSServer(fake)
	t.Cleanup(server.CloseClientConnections)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	dir, manifests := t.TempDir(), t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%s", certificate-authority-data: %s}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server.URL, base64.StdEncoding.EncodeToString(ca)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(manifests, "static.yaml"), []byte(`
apiVersion: v1
kind: Pod
metadata: {name: static}
spec: {containers: [{name: c, image: timer, args: ["1h"]}]}
`), 0o600))
	for name, duration := range map[string]string{"web": "1h", "job": "10ms", "invalid": "soon"} {
		pod := &corev1.Pod{}
		pod.Name, pod.Namespace, pod.Spec.NodeName, pod.Spec.RestartPolicy = name, "default", "node-1", corev1.RestartPolicyNever
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "timer", Args: []string{duration}}}
		fake.Put("pods", pod)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, kubeconfig, "node-1", manifests, filepath.Join(dir, "root")) }()
	has := func(name string, phase corev1.PodPhase) bool {
		pod := fake.Pod("default", name)
		return pod != nil && pod.Status.Phase == phase
	}
	require.Eventually(t, func() bool {
		node := fake.Node("node-1")
		return node != nil && strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "timers://") && has("web", corev1.PodRunning) &&
			has("job", corev1.PodSucceeded) && has("invalid", corev1.PodFailed) && has("static-node-1", corev1.PodRunning)
	}, 2*time.Minute, 50*time.Millisecond)
	ended := fake.Pod("default", "job").Status.ContainerStatuses[0].State.Terminated
	require.Equal(t, "Completed", ended.Reason, "kubectl shows it")
	require.False(t, ended.StartedAt.IsZero() || ended.FinishedAt.IsZero())
	cancel()
	require.NoError(t, <-done)
}

func TestRun_InvalidFlags(t *testing.T) {
	require.Error(t, run(t.Context(), "/missing", "n", "", t.TempDir()))
	require.ErrorContains(t, run(t.Context(), "", "n", t.TempDir(), "relative"), "absolute path")
	require.ErrorContains(t, run(t.Context(), "", "n", "", t.TempDir()), "give -manifests or -kubeconfig")
}

// The example is short.
func TestExample_Length(t *testing.T) {
	lines := 0
	for _, name := range []string{"main.go", "timers.go"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		lines += strings.Count(string(text), "\n")
	}
	require.LessOrEqual(t, lines, 150)
}
