package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/server"
)

func write(t *testing.T, file string, b []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, b, 0o600))
}

// SV-5
func TestCertificateFiles_Reload(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	files := server.CertificateFiles{Cert: cert, Key: key}
	_, err := files.TLS()
	require.ErrorContains(t, err, "tls.crt")
	ca := newAuthority(t, "ca")
	put := func(name string) {
		c, k := ca.sign(t, x509.ExtKeyUsageServerAuth, name)
		write(t, cert, c)
		write(t, key, k)
	}
	put("first")
	synctest.Test(t, func(t *testing.T) {
		cfg, err := files.TLS()
		require.NoError(t, err)
		assert.Equal(t, uint16(tls.VersionTLS12), cfg.MinVersion)
		name := func() string {
			pair, err := cfg.GetCertificate(nil)
			require.NoError(t, err)
			return pair.Leaf.Subject.CommonName
		}
		assert.Equal(t, "first", name())
		put("second")
		assert.Equal(t, "first", name(), "files are not read for each connection")
		time.Sleep(10 * time.Second)
		assert.Equal(t, "second", name())
		write(t, key, []byte("half"))
		time.Sleep(10 * time.Second)
		assert.Equal(t, "second", name(), "the previous pair stays in use")
		require.NoError(t, os.Remove(key))
		time.Sleep(10 * time.Second)
		assert.Equal(t, "second", name())
		put("third")
		time.Sleep(10 * time.Second)
		assert.Equal(t, "third", name())
	})
}

// SV-5
func TestClientCertificates_Reload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.Error(t, (&server.ClientCertificates{CAFile: file}).Check())
	write(t, file, []byte("no certificate"))
	require.ErrorContains(t, (&server.ClientCertificates{CAFile: file}).Check(), "contains no certificate")
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	write(t, file, first.pem())
	a := &server.ClientCertificates{CAFile: file}
	require.NoError(t, a.Check())
	leaf := func(ca *authority) *http.Request {
		pair := ca.client(t, "user", "group")
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Leaf}}
		return r
	}
	old, renewed := leaf(first), leaf(second)
	user, err := a.Authenticate(old)
	require.NoError(t, err)
	assert.Equal(t, "user", user.Username)
	assert.Equal(t, []string{"group"}, user.Groups)
	_, err = a.Authenticate(renewed)
	require.ErrorContains(t, err, "client certificate")
	user, err = a.Authenticate(httptest.NewRequest(http.MethodGet, "/", nil))
	require.NoError(t, err)
	assert.Nil(t, user, "no certificate, no user")

	// Another CA: also connections that exist lose their user.
	synctest.Test(t, func(t *testing.T) {
		a := &server.ClientCertificates{CAFile: file}
		_, err := a.Authenticate(old)
		require.NoError(t, err)
		write(t, file, second.pem())
		time.Sleep(10 * time.Second)
		_, err = a.Authenticate(old)
		require.Error(t, err)
	})
}

func TestServe_RejectsOldTLS(t *testing.T) {
	n := serveSecure(t)
	cfg := n.tls()
	cfg.MaxVersion = tls.VersionTLS11
	cfg.MinVersion = tls.VersionTLS10
	_, err := tls.Dial("tcp", n.addr, cfg)
	require.Error(t, err)
	cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	c, err := tls.Dial("tcp", n.addr, cfg)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// A configuration that offers HTTP/2, as those of libraries for certificates do, is served by HTTP/1.1:
// streams need it, and the limit of connections counts it.
func TestServe_NoHTTP2(t *testing.T) {
	n := serveSecure(t, func(cfg *server.Config) { cfg.TLS.NextProtos = []string{"h2", "http/1.1", "other"} })
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: n.tls(), ForceAttemptHTTP2: true}}
	t.Cleanup(c.CloseIdleConnections)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.addr+"/healthz", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer good")
	resp, err := c.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Equal(t, "HTTP/1.1", resp.Proto)
	assert.Equal(t, "http/1.1", resp.TLS.NegotiatedProtocol)
	assert.Equal(t, []string{"h2", "http/1.1", "other"}, n.cfg.TLS.NextProtos, "it is the caller's")
}
