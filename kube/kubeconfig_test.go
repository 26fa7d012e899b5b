package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newKey(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, _ := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) sign(t *testing.T, subject pkix.Name, public any, notBefore, notAfter time.Time) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject, NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// writeKubeconfig writes a kubeconfig for a server with the given user.
func writeKubeconfig(t *testing.T, server, ca, user string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: %s}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server, ca, user), 0o600))
	return file
}

func writeFile(t *testing.T, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pem")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	return file
}

func TestLoadKubeconfig(t *testing.T) {
	ca := newAuthority(t)
	key, keyPEM := newKey(t)
	_, otherKey := newKey(t)
	cert := func(from, to time.Duration) string {
		return writeFile(t, ca.sign(t, pkix.Name{CommonName: "system:node:n"}, &key.PublicKey, time.Now().Add(from), time.Now().Add(to)))
	}
	keyFile, caFile := writeFile(t, keyPEM), writeFile(t, ca.pem)
	user := func(cert, key string) string {
		return fmt.Sprintf("{client-certificate: %q, client-key: %q}", cert, key)
	}
	for name, tc := range map[string]struct{ user, ca, want, warn string }{
		"a certificate":             {user: user(cert(-time.Hour, time.Hour), keyFile)},
		"a token":                   {user: "{token: hunter2}"},
		"no user":                   {user: "{}", want: "user without credentials; give its context a user"},
		"an expired certificate":    {user: user(cert(-time.Hour, -time.Minute), keyFile), warn: `client certificate of "system:node:n" expired at`},
		"a certificate of tomorrow": {user: user(cert(time.Hour, 2*time.Hour), keyFile), warn: "set the clock"},
		"another key":               {user: user(cert(-time.Hour, time.Hour), writeFile(t, otherKey)), want: "that belong together"},
		"no authority":              {user: "{token: hunter2}", ca: writeFile(t, []byte("x")), want: "certificate-authority"},
		"a missing certificate":     {user: user("/none", keyFile), want: "/none"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.ca == "" {
				tc.ca = caFile
			}
			file := writeKubeconfig(t, "https://127.0.0.1:1", tc.ca, tc.user)
			cfg, err := LoadKubeconfig(file)
			if tc.want == "" {
				require.NoError(t, err)
				assert.EqualValues(t, 50, cfg.QPS)
				assert.Equal(t, 100, cfg.Burst)
				invalid := CheckClientCertificate(cfg, time.Now())
				if tc.warn == "" {
					require.NoError(t, invalid)
				} else {
					require.ErrorContains(t, invalid, tc.warn)
				}
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, file)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
	_, err := LoadKubeconfig("")
	require.ErrorContains(t, err, "no file; give")
	_, err = LoadKubeconfig(writeKubeconfig(t, "http://127.0.0.1:1", caFile, "{token: hunter2}"))
	require.ErrorContains(t, err, "server http://127.0.0.1:1 must be https")
	_, err = LoadKubeconfig("/none")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = LoadKubeconfig(writeFile(t, []byte("apiVersion: v1\nkind: Config\n")))
	require.ErrorContains(t, err, "no cluster; set current-context")
	_, err = LoadKubeconfig(writeFile(t, []byte("{")))
	require.Error(t, err)
}

// Paths in a kubeconfig are relative to its directory, as for kubectl, and not to that of the process.
func TestLoadKubeconfig_RelativePaths(t *testing.T) {
	ca := newAuthority(t)
	key, keyPEM := newKey(t)
	cert := ca.sign(t, pkix.Name{CommonName: "system:node:n"}, &key.PublicKey, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	file := writeKubeconfig(t, "https://127.0.0.1:1", "ca.pem", "{client-certificate: cert.pem, client-key: key.pem}")
	for name, data := range map[string][]byte{"ca.pem": ca.pem, "cert.pem": cert, "key.pem": keyPEM} {
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), name), data, 0o600))
	}
	t.Chdir(t.TempDir())
	cfg, err := LoadKubeconfig(file)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(filepath.Dir(file), "ca.pem"), cfg.CAFile)
}

func TestExplain(t *testing.T) {
	assert.NoError(t, explain(nil))
	plain := errors.New("connection refused")
	assert.Equal(t, plain, explain(plain))
	for want, err := range map[string]error{
		"is not that of the API server":    fmt.Errorf("get: %w", x509.UnknownAuthorityError{}),
		"must have a name that is in":      x509.HostnameError{Certificate: &x509.Certificate{}},
		"is not valid at the time of this": x509.CertificateInvalidError{Reason: x509.Expired},
		"does not know the user":           apierrors.NewUnauthorized("no"),
		"in the group system:nodes":        apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n", nil),
	} {
		got := explain(err)
		require.ErrorIs(t, got, err)
		assert.ErrorContains(t, got, want)
	}
}

// A node that trusts another authority says so.
func TestExplain_WrongAuthority(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	cfg, err := LoadKubeconfig(writeKubeconfig(t, server.URL, writeFile(t, newAuthority(t).pem), "{token: hunter2}"))
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	err = explain(err)
	require.ErrorContains(t, err, "the certificate-authority of the kubeconfig is not that of the API server")
	assert.NotContains(t, err.Error(), "hunter2")
}
