package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
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

// The node is Ready, and runs a pod of the cluster and a static one with its mirror pod.
func TestRun(t *testing.T) {
	fake := kubetest.NewFake(t)
	server := httptest.NewTLSServer(fake)
	t.Cleanup(server.CloseClientConnections)
	dir, manifests := t.TempDir(), t.TempDir()
	f := flags{kubeconfig: filepath.Join(dir, "kubeconfig"), nodeName: "node-1", rootDir: filepath.Join(dir, "root"), manifests: manifests}
	require.NoError(t, os.WriteFile(f.kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%s", insecure-skip-tls-verify: true}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: x
`, server.URL), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(manifests, "static.yaml"), []byte(`
apiVersion: v1
kind: Pod
metadata: {name: static}
spec: {hostNetwork: true, containers: [{name: c, image: registry.example/app}]}
`), 0o600))
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.Spec.NodeName = "web", "default", "node-1"
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "registry.example/app"}}
	fake.Put("pods", pod)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, f, slog.New(slog.DiscardHandler)) }()
	isRunning := func(name string) bool {
		pod := fake.Pod("default", name)
		return pod != nil && pod.Status.Phase == corev1.PodRunning
	}
	require.Eventually(t, func() bool {
		node := fake.Node("node-1")
		return node != nil && isReady(node) && isRunning("web") && isRunning("static-node-1")
	}, 2*time.Minute, 50*time.Millisecond)
	for _, address := range fake.Node("node-1").Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			require.Equal(t, address.Address, fake.Pod("default", "web").Status.HostIP)
			require.Equal(t, address.Address, fake.Pod("default", "static-node-1").Status.PodIP, "of a pod on the host network")
		}
	}
	cancel()
	require.NoError(t, <-done)
}

func isReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// A node whose certificate has expired runs its pods, and says why it is not Ready.
func TestRun_ExpiredCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:node-1"},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	pair := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})...)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pair.pem"), pair, 0o600))
	f := flags{kubeconfig: filepath.Join(dir, "kubeconfig"), nodeName: "node-1", rootDir: filepath.Join(dir, "root")}
	require.NoError(t, os.WriteFile(f.kubeconfig, []byte(`
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
users: [{name: u, user: {client-certificate: pair.pem, client-key: pair.pem}}]
current-context: x
`), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var log strings.Builder
	require.NoError(t, run(ctx, f, slog.New(slog.NewTextHandler(&log, nil))))
	require.Contains(t, log.String(), `level=WARN msg="client certificate not valid"`)
	require.Contains(t, log.String(), "expired at")
}

func TestRun_InvalidFlags(t *testing.T) {
	dir := t.TempDir()
	require.Error(t, run(t.Context(), flags{kubeconfig: filepath.Join(dir, "missing")}, slog.New(slog.DiscardHandler)))
	file := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"https://127.0.0.1:1\"}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\ncurrent-context: x\n"), 0o600))
	require.ErrorContains(t, run(t.Context(), flags{kubeconfig: file, nodeName: "../n"}, slog.New(slog.DiscardHandler)), "invalid name")
	require.ErrorContains(t, run(t.Context(), flags{kubeconfig: file, nodeName: "n", rootDir: "relative"}, slog.New(slog.DiscardHandler)), "absolute path")
}
