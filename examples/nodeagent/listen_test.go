package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/server"
)

func TestParse_ListensForOthersWithTLSAndAuthenticationOnly(t *testing.T) {
	tlsFiles := []string{"-tls-cert-file", "c", "-tls-private-key-file", "k"}
	for _, tt := range []struct {
		name string
		args []string
		want string // empty: valid
	}{
		{"loopback", []string{"-listen", "127.0.0.1:1"}, ""},
		{"socket", []string{"-listen", "unix:///run/x.sock"}, ""},
		{"loopback with TLS alone", append(tlsFiles, "-listen", "[::1]:1"), ""},
		{"everywhere with certificates", append(tlsFiles, "-listen", "0.0.0.0:1", "-client-ca-file", "ca"), ""},
		{"everywhere with a token", append(tlsFiles, "-listen", ":1", "-token-auth-file", "t"), ""},
		{"everywhere in plain text", []string{"-listen", "0.0.0.0:1"}, "other machines can reach this address; give -tls-cert-file"},
		{"all addresses in plain text", []string{"-listen", ":1"}, "other machines can reach this address; give -tls-cert-file"},
		{"everywhere for everybody", append(tlsFiles, "-listen", "0.0.0.0:1"), "give -client-ca-file or -token-auth-file"},
		{"certificate without key", []string{"-tls-cert-file", "c"}, "give both or none"},
		{"token in plain text", []string{"-token-auth-file", "t"}, "a token is not sent in plain text"},
		{"relative socket", []string{"-listen", "unix://x"}, "must be unix:///path"},
		{"no port", []string{"-listen", "127.0.0.1"}, "must be host:port"},
		{"kubelet's API", append(tlsFiles, "-listen-https", ":10250", "-client-ca-file", "ca"), ""},
		{"kubelet's API and a socket", append(tlsFiles, "-listen", "unix:///run/x.sock", "-listen-https", ":10250", "-token-auth-file", "t"), ""},
		{"kubelet's API alone", append(tlsFiles, "-listen", "", "-listen-https", ":10250", "-token-auth-file", "t"), ""},
		{"kubelet's API in plain text", []string{"-listen-https", ":10250", "-token-auth-file", "t"}, "give -tls-cert-file"},
		{"kubelet's API for everybody", append(tlsFiles, "-listen-https", ":10250"), "not every client can enter containers"},
		{"kubelet's API without port", append(tlsFiles, "-listen-https", "host", "-token-auth-file", "t"), "must be host:port"},
		{"kubelet's API beside all addresses in plain text", append(tlsFiles, "-listen", ":1", "-listen-https", ":10250", "-token-auth-file", "t"), "other machines can reach this address"},
		{"in a cluster, which identifies clients", append(tlsFiles, "-kubeconfig", "/k"), ""},
		{"in a cluster, which signs the certificate", []string{"-kubeconfig", "/k", "-listen-https", ":1"}, ""},
		{"in a cluster without servers", []string{"-kubeconfig", "/k", "-listen", "", "-listen-https", ""}, ""},
		{"in a cluster with a token of its own", append(tlsFiles, "-kubeconfig", "/k", "-token-auth-file", "t"), "reviewed by the cluster"},
		{"TLS without server", append(tlsFiles, "-listen", ""), "have no effect without -listen or -listen-https"},
		{"TLS for kubectl alone", append(tlsFiles, "-listen", "", "-kube-api", "192.0.2.1:6443"), ""},
		{"TLS for kubectl on loopback", append(tlsFiles, "-listen", "", "-kube-api", "127.0.0.1:6443"), "have no effect"},
	} {
		_, err := parse(append([]string{"-manifests", "/m"}, tt.args...), io.Discard)
		if tt.want == "" {
			assert.NoError(t, err, tt.name)
		} else {
			assert.ErrorContains(t, err, tt.want, tt.name)
		}
	}
}

// writeCert writes a certificate signed by itself, which is its own CA, and its key.
func writeCert(t *testing.T, name string) (certFile, keyFile string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	pair, err = tls.LoadX509KeyPair(certFile, keyFile)
	require.NoError(t, err)
	return certFile, keyFile, pair
}

// serveFor runs a server with the flags and returns its address.
func serveFor(t *testing.T, f listenFlags) (addr string) {
	t.Helper()
	var cfg server.Config
	require.NoError(t, f.configure(&cfg))
	srv, err := server.New(cfg)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return listener.Addr().String()
}

func get(t *testing.T, url, token string, config *tls.Config) (code int, err error) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(r)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func TestListen_ServesClientsWithCertificateAndToken(t *testing.T) {
	certFile, keyFile, serverPair := writeCert(t, "server")
	caFile, _, client := writeCert(t, "client")
	_, _, stranger := writeCert(t, "stranger")
	tokenFile := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte("secret-1\n"), 0o600))
	trust := x509.NewCertPool()
	trust.AddCert(serverPair.Leaf)
	as := func(certs ...tls.Certificate) *tls.Config { return &tls.Config{RootCAs: trust, Certificates: certs} }

	addr := serveFor(t, listenFlags{addr: "0.0.0.0:10255", tlsCert: certFile, tlsKey: keyFile, clientCA: caFile})
	code, err := get(t, "https://"+addr+"/healthz", "", as(client))
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code)
	for name, config := range map[string]*tls.Config{"without certificate": as(), "with a foreign certificate": as(stranger)} {
		code, err = get(t, "https://"+addr+"/healthz", "", config)
		require.NoError(t, err)
		assert.Equal(t, http.StatusUnauthorized, code, name)
	}
	code, err = get(t, "http://"+addr+"/healthz", "", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, code, "plain text")

	addr = serveFor(t, listenFlags{addr: "0.0.0.0:10255", tlsCert: certFile, tlsKey: keyFile, tokens: tokenFile})
	for token, want := range map[string]int{"Bearer secret-1": 200, "bearer secret-1": 200, "Bearer secret-2": 401, "Basic secret-1": 401, "Bearer ": 401, "": 401} {
		code, err = get(t, "https://"+addr+"/pods", token, as())
		require.NoError(t, err)
		assert.Equal(t, want, code, token)
	}
	require.NoError(t, os.WriteFile(tokenFile, []byte("secret-2\n"), 0o600))
	code, err = get(t, "https://"+addr+"/pods", "Bearer secret-2", as())
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code, "a token can be replaced")
	require.NoError(t, os.WriteFile(tokenFile, nil, 0o600))
	code, err = get(t, "https://"+addr+"/pods", "Bearer ", as())
	require.NoError(t, err)
	assert.Equal(t, http.StatusUnauthorized, code, "an empty file lets no client in")
}

// A file that is malformed is a mistake in the flags: a restart does not help, as it may if the file is missing.
func TestRun_UnusableFilesAreUsageErrors(t *testing.T) {
	certFile, keyFile, _ := writeCert(t, "server")
	dir := t.TempDir()
	empty, missing := filepath.Join(dir, "empty"), filepath.Join(dir, "missing")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, tt := range map[string]struct {
		args []string
		want int
	}{
		"certificate":   {[]string{"-listen", "127.0.0.1:0", "-tls-cert-file", empty, "-tls-private-key-file", keyFile}, exitUsage},
		"CA":            {[]string{"-listen", "127.0.0.1:0", "-tls-cert-file", certFile, "-tls-private-key-file", keyFile, "-client-ca-file", empty}, exitUsage},
		"token":         {[]string{"-listen", "127.0.0.1:0", "-tls-cert-file", certFile, "-tls-private-key-file", keyFile, "-token-auth-file", empty}, exitUsage},
		"kubeconfig":    {[]string{"-listen", "", "-kubeconfig", empty}, exitUsage},
		"kubectl":       {[]string{"-listen", "", "-kube-api", "0.0.0.0:6443", "-tls-cert-file", empty, "-tls-private-key-file", keyFile}, exitUsage},
		"no kubectl":    {[]string{"-listen", "", "-kube-api", "0.0.0.0:6443", "-tls-cert-file", missing, "-tls-private-key-file", keyFile}, exitFailed},
		"missing token": {[]string{"-listen", "127.0.0.1:0", "-tls-cert-file", certFile, "-tls-private-key-file", keyFile, "-token-auth-file", missing}, exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			f, err := parse(append([]string{
				"-manifests", t.TempDir(), "-root-dir", root, "-pod-logs-dir", filepath.Join(root, "logs"), "-hostname-override", "n",
			}, tt.args...), io.Discard)
			require.NoError(t, err)
			err = run(t.Context(), f, io.Discard)
			require.Error(t, err)
			assert.Equal(t, tt.want, exitCode(err), err)
			if i := slices.Index(tt.args, "-kube-api"); i >= 0 {
				assert.Regexp(t, `^-kube-api "0.0.0.0:6443": -tls-cert-file, .*`+tt.args[i+3]+`.*; give a certificate`, err.Error(), "it names flags and file")
			}
		})
	}
}

func TestListen_ReportsUnusableFiles(t *testing.T) {
	certFile, keyFile, _ := writeCert(t, "server")
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for want, f := range map[string]listenFlags{
		"-tls-cert-file, -tls-private-key-file: ": {tlsCert: empty, tlsKey: keyFile},
		"contains no certificate":                 {tlsCert: certFile, tlsKey: keyFile, clientCA: empty},
		"must contain one token":                  {tlsCert: certFile, tlsKey: keyFile, tokens: empty},
	} {
		f.addr = "127.0.0.1:0"
		assert.ErrorContains(t, f.configure(new(server.Config)), want)
	}
}
