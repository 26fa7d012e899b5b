package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
)

// signer is an API server that signs certificate signing requests.
type signer struct {
	t  *testing.T
	ca *authority

	mu       sync.Mutex
	requests []certificatesv1.CertificateSigningRequest
	pending  bool // requests are not approved
}

func startSigner(t *testing.T) (*signer, *httptest.Server, string) {
	s := &signer{t: t, ca: newAuthority(t)}
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return s, server, writeFile(t, ca)
}

func (s *signer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case !strings.Contains(r.URL.Path, "certificatesigningrequests"):
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodPost && r.Header.Get("Authorization") != "Bearer hunter2":
		w.WriteHeader(http.StatusUnauthorized)
	case r.Method == http.MethodPost:
		body, err := io.ReadAll(r.Body)
		assert.NoError(s.t, err)
		var csr certificatesv1.CertificateSigningRequest // in any encoding
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &csr)
		assert.NoError(s.t, err)
		csr.Name, csr.UID = "csr-1", "u"
		csr.APIVersion, csr.Kind = "certificates.k8s.io/v1", "CertificateSigningRequest"
		s.requests = append(s.requests, csr)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(csr)
	case len(s.requests) > 0:
		csr := s.signed()
		if r.URL.Query().Get("watch") != "" {
			end := certificatesv1.CertificateSigningRequest{TypeMeta: csr.TypeMeta}
			end.ResourceVersion, end.Annotations = "1", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
			encoder := json.NewEncoder(w)
			_ = encoder.Encode(map[string]any{"type": "ADDED", "object": csr})
			_ = encoder.Encode(map[string]any{"type": "BOOKMARK", "object": end})
			return
		}
		list := certificatesv1.CertificateSigningRequestList{Items: []certificatesv1.CertificateSigningRequest{*csr}}
		list.APIVersion, list.Kind, list.ResourceVersion = "certificates.k8s.io/v1", "CertificateSigningRequestList", "1"
		_ = json.NewEncoder(w).Encode(list)
	}
}

// signed returns the last request, signed unless it is pending.
func (s *signer) signed() *certificatesv1.CertificateSigningRequest {
	csr := s.requests[len(s.requests)-1].DeepCopy()
	csr.ResourceVersion = "1"
	if s.pending {
		return csr
	}
	block, _ := pem.Decode(csr.Spec.Request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	assert.NoError(s.t, err)
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: "True"}}
	csr.Status.Certificate = s.ca.sign(s.t, parsed.Subject, parsed.PublicKey, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	return csr
}

func TestNewClientCertificate_ReportsAllErrors(t *testing.T) {
	_, err := NewClientCertificate(ClientCertificateConfig{})
	for _, field := range []string{"NodeName", "BootstrapKubeconfig", "Kubeconfig", "Dir"} {
		require.ErrorContains(t, err, "ClientCertificateConfig."+field+": required")
	}
}

// KU-7
func TestClientCertificate_IsRequestedOnce(t *testing.T) {
	s, server, ca := startSigner(t)
	dir := t.TempDir()
	cfg := ClientCertificateConfig{
		NodeName: "n", BootstrapKubeconfig: writeKubeconfig(t, server.URL, ca, "{token: hunter2}"),
		Kubeconfig: filepath.Join(dir, "new", "kubeconfig"), Dir: filepath.Join(dir, "pki"),
	}
	c, err := NewClientCertificate(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := c.Config(ctx)
	require.NoError(t, err)
	assert.Empty(t, got.BearerToken, "the bootstrap token is used for the request alone")
	pair, err := tls.LoadX509KeyPair(got.CertFile, got.KeyFile)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	assert.Equal(t, "system:node:n", cert.Subject.CommonName)
	assert.Equal(t, []string{"system:nodes"}, cert.Subject.Organization)
	require.Len(t, s.requests, 1)
	assert.Equal(t, certificatesv1.KubeAPIServerClientKubeletSignerName, s.requests[0].Spec.SignerName)
	data, err := os.ReadFile(cfg.Kubeconfig)
	require.NoError(t, err)
	assert.NotContains(t, string(data), "hunter2")
	info, err := os.Stat(cfg.Kubeconfig)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())

	second, err := NewClientCertificate(cfg)
	require.NoError(t, err)
	_, err = second.Config(ctx)
	require.NoError(t, err)
	assert.Len(t, s.requests, 1, "the kubeconfig is used from then on")

	running, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- second.Run(running) }()
	stop()
	require.NoError(t, <-done)
}

func TestClientCertificate_NotSigned(t *testing.T) {
	s, server, ca := startSigner(t)
	s.pending = true
	c, err := NewClientCertificate(ClientCertificateConfig{
		NodeName: "n", BootstrapKubeconfig: writeKubeconfig(t, server.URL, ca, "{token: hunter2}"), Kubeconfig: filepath.Join(t.TempDir(), "k"), Dir: t.TempDir(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = c.Config(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "approve the certificate signing request")
}

// A node whose certificate has expired starts with it, also without the API server, wherever the certificate is. KU-7
func TestClientCertificate_StartsWithExpired(t *testing.T) {
	ca := newAuthority(t)
	caFile := writeFile(t, ca.pem)
	for name, tc := range map[string]struct {
		elsewhere bool // the certificate of the kubeconfig is not in Dir
		lost      bool // there is no kubeconfig
		from, to  time.Duration
		warn      string
	}{
		"expired":                   {from: -2 * time.Hour, to: -time.Hour, warn: "expired at"},
		"expired in another place":  {elsewhere: true, from: -2 * time.Hour, to: -time.Hour, warn: "expired at"},
		"expired, kubeconfig lost":  {lost: true, from: -2 * time.Hour, to: -time.Hour},
		"of tomorrow":               {from: time.Hour, to: 2 * time.Hour, warn: "set the clock"},
		"of tomorrow, elsewhere":    {elsewhere: true, from: time.Hour, to: 2 * time.Hour, warn: "set the clock"},
		"valid, kubeconfig is lost": {lost: true, from: -time.Hour, to: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			c, err := NewClientCertificate(ClientCertificateConfig{
				NodeName: "n", BootstrapKubeconfig: writeKubeconfig(t, "https://127.0.0.1:1", caFile, "{token: hunter2}"),
				Kubeconfig: filepath.Join(t.TempDir(), "none"), Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			require.NoError(t, err)
			key, keyPEM := newKey(t)
			cert := ca.sign(t, pkix.Name{CommonName: "system:node:n"}, &key.PublicKey, time.Now().Add(tc.from), time.Now().Add(tc.to))
			where := c.store.CurrentPath()
			if tc.elsewhere {
				where = writeFile(t, append(cert, keyPEM...))
			} else {
				_, err = c.store.Update(cert, keyPEM)
				require.NoError(t, err)
			}
			if !tc.lost {
				c.cfg.Kubeconfig = writeKubeconfig(t, "https://127.0.0.1:1", caFile, fmt.Sprintf("{client-certificate: %q, client-key: %q}", where, where))
			}
			before, _ := os.ReadFile(c.cfg.Kubeconfig) // there may be none
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cfg, err := c.Config(ctx)
			require.NoError(t, err)
			if tc.lost || tc.elsewhere && tc.to < 0 {
				assert.Equal(t, c.store.CurrentPath(), cfg.CertFile, "where Run renews it")
			} else {
				assert.Equal(t, where, cfg.CertFile)
				after, err := os.ReadFile(c.cfg.Kubeconfig)
				require.NoError(t, err)
				assert.Equal(t, string(before), string(after))
			}
			used, err := clientCertificate(cfg)
			require.NoError(t, err)
			assert.Equal(t, &key.PublicKey, used.PublicKey)
			assert.Contains(t, log.String(), tc.warn)
		})
	}
}

// An expired certificate is used where no other can be requested: the bootstrap kubeconfig may be removed once a node
// has a certificate.
func TestClientCertificate_ExpiredWithoutBootstrap(t *testing.T) {
	ca := newAuthority(t)
	key, keyPEM := newKey(t)
	cert := ca.sign(t, pkix.Name{CommonName: "system:node:n"}, &key.PublicKey, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	pair := writeFile(t, append(cert, keyPEM...))
	var log strings.Builder
	c, err := NewClientCertificate(ClientCertificateConfig{
		NodeName: "n", BootstrapKubeconfig: filepath.Join(t.TempDir(), "none"), Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Kubeconfig: writeKubeconfig(t, "https://127.0.0.1:1", writeFile(t, ca.pem), fmt.Sprintf("{client-certificate: %q, client-key: %q}", pair, pair)),
	})
	require.NoError(t, err)
	cfg, err := c.Config(t.Context())
	require.NoError(t, err)
	assert.Equal(t, pair, cfg.CertFile)
	assert.Contains(t, log.String(), "client certificate not renewed")
	assert.Contains(t, log.String(), "bootstrap: ")
}

// Who made a valid certificate that is elsewhere renews it. The log says that the agent does not.
func TestClientCertificate_Elsewhere(t *testing.T) {
	ca := newAuthority(t)
	key, keyPEM := newKey(t)
	expiry := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	pair := writeFile(t, append(ca.sign(t, pkix.Name{CommonName: "system:node:n"}, &key.PublicKey, time.Now().Add(-time.Hour), expiry), keyPEM...))
	for user, want := range map[string]int{fmt.Sprintf("{client-certificate: %q, client-key: %q}", pair, pair): 1, "{token: hunter2}": 0} {
		var log strings.Builder
		c, err := NewClientCertificate(ClientCertificateConfig{
			NodeName: "n", BootstrapKubeconfig: "/none", Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Kubeconfig: writeKubeconfig(t, "https://127.0.0.1:1", writeFile(t, ca.pem), user),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, c.Run(ctx))
		assert.Equal(t, want, strings.Count(log.String(), "client certificate is not renewed"), log.String())
		assert.Equal(t, want, strings.Count(log.String(), "expiry="+expiry.Format("2006-01-02T15:04:05")), log.String())
	}
}

// A file system may lose data.
func TestClientCertificate_Damaged(t *testing.T) {
	s, server, ca := startSigner(t)
	cfg := ClientCertificateConfig{
		NodeName: "n", BootstrapKubeconfig: writeKubeconfig(t, server.URL, ca, "{token: hunter2}"), Kubeconfig: filepath.Join(t.TempDir(), "k"), Dir: t.TempDir(),
	}
	for range 2 {
		c, err := NewClientCertificate(cfg)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got, err := c.Config(ctx)
		require.NoError(t, err)
		require.NoError(t, CheckClientCertificate(got, time.Now()))
		require.NoError(t, os.Truncate(got.CertFile, 100))
	}
	assert.Len(t, s.requests, 2)
}

// The API server does not accept an expired certificate, not even to renew it.
func TestClientCertificate_ReplacesExpired(t *testing.T) {
	s, server, ca := startSigner(t)
	c, err := NewClientCertificate(ClientCertificateConfig{
		NodeName: "n", BootstrapKubeconfig: writeKubeconfig(t, server.URL, ca, "{token: hunter2}"), Kubeconfig: filepath.Join(t.TempDir(), "k"), Dir: t.TempDir(),
	})
	require.NoError(t, err)
	key, keyPEM := newKey(t)
	_, err = c.store.Update(s.ca.sign(t, pkix.Name{CommonName: "system:node:n"}, &key.PublicKey, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)), keyPEM)
	require.NoError(t, err)
	cfg, err := c.Config(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, CheckClientCertificate(cfg, time.Now()), "expired")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	assert.Eventually(t, func() bool { return CheckClientCertificate(cfg, time.Now()) == nil }, time.Minute, 50*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func TestClientCertificate_BootstrapWithoutUser(t *testing.T) {
	c, err := NewClientCertificate(ClientCertificateConfig{
		NodeName: "n", BootstrapKubeconfig: writeKubeconfig(t, "https://127.0.0.1:1", writeFile(t, newAuthority(t).pem), "{}"), Kubeconfig: filepath.Join(t.TempDir(), "k"), Dir: t.TempDir(),
	})
	require.NoError(t, err)
	_, err = c.Config(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "bootstrap: kubeconfig")
	require.ErrorContains(t, err, "user without credentials")
}

// KU-7
func TestServingCertificate(t *testing.T) {
	s, server, ca := startSigner(t)
	rc, err := LoadKubeconfig(writeKubeconfig(t, server.URL, ca, "{token: hunter2}"))
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(rc)
	require.NoError(t, err)
	k, err := New(Config{Client: client, NodeName: "n"})
	require.NoError(t, err)
	_, err = k.ServingCertificate(ServingCertificateConfig{})
	require.ErrorContains(t, err, "required")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubelet-server-current.pem"), []byte("damaged"), 0o600))
	c, err := k.ServingCertificate(ServingCertificateConfig{Dir: dir, Addresses: func() ([]string, []string) { return []string{"127.0.0.1", "bad"}, []string{"host"} }})
	require.NoError(t, err)
	_, err = c.GetCertificate(nil)
	require.ErrorIs(t, err, ErrNoServingCertificate)
	require.Zero(t, c.Expiry())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	require.Eventually(t, func() bool { cert, err := c.GetCertificate(nil); return err == nil && cert != nil }, time.Minute, 50*time.Millisecond)
	require.WithinDuration(t, time.Now().Add(time.Hour), c.Expiry(), 10*time.Minute)
	cancel()
	require.NoError(t, <-done)
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Equal(t, certificatesv1.KubeletServingSignerName, s.requests[0].Spec.SignerName)
	block, _ := pem.Decode(s.requests[0].Spec.Request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	require.NoError(t, err)
	assert.Equal(t, []string{"host"}, parsed.DNSNames)
	assert.Len(t, parsed.IPAddresses, 1)
	none := &ServingCertificate{k: k, cfg: ServingCertificateConfig{Addresses: func() ([]string, []string) { return nil, nil }}}
	assert.Nil(t, none.template(), "without an address none is requested")
}

// A cloud may give the addresses of a node in another order each time. A request that waits for its approval stays.
func TestServingCertificate_OrderOfAddresses(t *testing.T) {
	var requests []*x509.CertificateRequest
	for _, ips := range [][]string{{"192.0.2.1", "2001:db8::1"}, {"2001:db8::1", "192.0.2.1"}} {
		hostnames := []string{"of-" + ips[0], "of-" + ips[1]}
		c := &ServingCertificate{k: &Kube{}, cfg: ServingCertificateConfig{Addresses: func() ([]string, []string) { return ips, hostnames }}}
		requests = append(requests, c.template())
	}
	assert.Equal(t, requests[0], requests[1])
}

// A node that needs a proxy for its certificate needs it for all else.
func TestClientCertificate_KeepsTheProxy(t *testing.T) {
	for proxy, line := range map[string]string{"": "", "http://user:hunter2@proxy.example:3128": `, proxy-url: "http://user:hunter2@proxy.example:3128"`} {
		bootstrap, err := LoadKubeconfig(writeFile(t, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://api.example"%s}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, line)))
		require.NoError(t, err)
		dir := t.TempDir()
		c, err := NewClientCertificate(ClientCertificateConfig{NodeName: "n", BootstrapKubeconfig: "/b", Kubeconfig: filepath.Join(dir, "k"), Dir: dir})
		require.NoError(t, err)
		require.NoError(t, c.writeKubeconfig(bootstrap))
		written, err := clientcmd.LoadFromFile(filepath.Join(dir, "k"))
		require.NoError(t, err)
		assert.Equal(t, proxy, written.Clusters["node"].ProxyURL)
	}
}
