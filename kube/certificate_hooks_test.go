package kube

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A renewal that the API server rejects is counted, and a hook that panics does not end it.
func TestServingCertificate_RenewalFailedHook(t *testing.T) {
	_, server, ca := startSigner(t)
	rc, err := LoadKubeconfig(writeKubeconfig(t, server.URL, ca, "{token: wrong}"))
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(rc)
	require.NoError(t, err)
	k, err := New(Config{Client: client, NodeName: "n"})
	require.NoError(t, err)
	failed := make(chan struct{}, 100)
	c, err := k.ServingCertificate(ServingCertificateConfig{
		Dir: t.TempDir(), Addresses: func() ([]string, []string) { return []string{"127.0.0.1"}, nil },
		Hooks: CertificateHooks{RenewalFailed: func() { failed <- struct{}{}; panic("defect of the application") }},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-failed
	cancel()
	require.NoError(t, <-done)
}

func TestCertificateHooks(t *testing.T) {
	log, ages := slog.New(slog.DiscardHandler), []time.Duration(nil)
	h := CertificateHooks{Renewed: func(age time.Duration) { ages = append(ages, age); panic("defect of the application") }}
	assert.Nil(t, h.failures(log))
	h.rotations(log).Observe(1.5)
	assert.Equal(t, []time.Duration{1500 * time.Millisecond}, ages)
	assert.Nil(t, CertificateHooks{}.rotations(log))
}

func TestClientCertificateExpiry(t *testing.T) {
	assert.Zero(t, ClientCertificateExpiry(&rest.Config{}), "a user with a token")
	assert.Zero(t, ClientCertificateExpiry(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CertFile: "/none", KeyFile: "/none"}}))
}
