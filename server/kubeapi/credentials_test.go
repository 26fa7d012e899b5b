package kubeapi_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

func loadCredentials(t *testing.T, dir string) *kubeapi.Credentials {
	t.Helper()
	c, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: dir, Addr: "127.0.0.1:6443", NodeName: nodeName})
	require.NoError(t, err)
	return c
}

// leaf returns the certificate of the server, verified with the CA of the kubeconfig.
func leaf(t *testing.T, c *kubeapi.Credentials, host string) *x509.Certificate {
	t.Helper()
	served, err := c.TLS().GetCertificate(&tls.ClientHelloInfo{})
	require.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(config.CAData))
	_, err = served.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: time.Now()})
	require.NoError(t, err)
	return served.Leaf
}

// SV-13
func TestCredentials_FilesArePrivateAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kube-api")
	c := loadCredentials(t, dir)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	before := map[string]string{}
	for _, name := range []string{"ca.crt", "ca.key", "server.crt", "server.key", "token", "kubeconfig"} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		before[name] = string(b)
	}
	assert.Len(t, strings.TrimSpace(before["token"]), 64)
	for _, host := range []string{"127.0.0.1", "localhost", "::1"} {
		leaf(t, c, host)
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	require.NoError(t, err)
	assert.Equal(t, "https://127.0.0.1:6443", config.Host)
	assert.Equal(t, strings.TrimSpace(before["token"]), config.BearerToken)
	require.NoError(t, os.Chmod(c.Kubeconfig(), 0o644))
	loadCredentials(t, dir)
	for name, text := range before {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, text, string(b), "%s stays, so that copies of the kubeconfig do", name)
	}
	info, err = os.Stat(c.Kubeconfig())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.Remove(filepath.Join(dir, "token")))
	config, err = clientcmd.BuildConfigFromFlags("", loadCredentials(t, dir).Kubeconfig())
	require.NoError(t, err)
	assert.NotEqual(t, strings.TrimSpace(before["token"]), config.BearerToken, "revoked")
}

func TestCredentials_Authenticate(t *testing.T) {
	c := loadCredentials(t, t.TempDir())
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	user, err := c.Authenticate(r)
	require.NoError(t, err)
	assert.Nil(t, user)
	for token, ok := range map[string]bool{config.BearerToken: true, config.BearerToken + "x": false, "": false, config.BearerToken[1:]: false} {
		r.Header.Set("Authorization", "Bearer "+token)
		user, err := c.Authenticate(r)
		assert.Equal(t, ok, err == nil)
		if ok {
			assert.Equal(t, kubeapi.OwnerName, user.Username)
		} else {
			assert.NotContains(t, err.Error(), config.BearerToken[1:])
		}
	}
	r.Header.Set("Authorization", "bearer "+config.BearerToken) // RFC 9110: in any case
	user, err = c.Authenticate(r)
	require.NoError(t, err)
	require.NotNil(t, user)
	r.Header.Set("Authorization", "Basic "+config.BearerToken)
	user, err = c.Authenticate(r)
	require.NoError(t, err)
	assert.Nil(t, user)
}

// SV-13
func TestCredentials_Renewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		first := leaf(t, loadCredentials(t, dir), "127.0.0.1")
		time.Sleep(200 * 24 * time.Hour)
		assert.Equal(t, first.SerialNumber, leaf(t, loadCredentials(t, dir), "127.0.0.1").SerialNumber)
		ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
		require.NoError(t, err)
		time.Sleep(60 * 24 * time.Hour)
		c := loadCredentials(t, dir)
		assert.NotEqual(t, first.SerialNumber, leaf(t, c, "127.0.0.1").SerialNumber)
		same, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
		require.NoError(t, err)
		assert.Equal(t, string(ca), string(same), "the kubeconfig stays valid")
		time.Sleep(7 * 365 * 24 * time.Hour)
		leaf(t, loadCredentials(t, dir), "127.0.0.1") // of a new CA
		other, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
		require.NoError(t, err)
		assert.NotEqual(t, string(ca), string(other))
	})
}

// What a killed agent has left of a write, a private key among it, is removed.
func TestCredentials_RemovesInterruptedWrites(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".server.key.123", ".ca.crt.45", ".token.6", ".kubeconfig.7"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("part"), 0o600))
	}
	loadCredentials(t, dir)
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestCredentials_DamagedFilesAndOtherAddress(t *testing.T) {
	dir := t.TempDir()
	loadCredentials(t, dir)
	for _, name := range []string{"server.key", "server.crt", "ca.key", "token"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
		leaf(t, loadCredentials(t, dir), "127.0.0.1")
	}
	c, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: dir, Addr: "node.example:6443"})
	require.NoError(t, err)
	leaf(t, c, "node.example")
	_, err = kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: dir})
	require.ErrorContains(t, err, "required")
}

// A kubeconfig that names no host is of no use to kubectl.
func TestCredentials_AllAddresses(t *testing.T) {
	for _, addr := range []string{":6443", "0.0.0.0:6443", "[::]:6443"} {
		c, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: t.TempDir(), Addr: addr})
		require.NoError(t, err)
		config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
		require.NoError(t, err)
		assert.Equal(t, "https://127.0.0.1:6443", config.Host, addr)
		assert.Empty(t, config.ServerName)
		leaf(t, c, "127.0.0.1")
	}
	dir, a := t.TempDir(), newAuthority(t)
	files := server.CertificateFiles{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	for name, template := range map[string]x509.Certificate{
		"":            {IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1), net.IPv4(127, 0, 0, 1)}},
		"192.0.2.1":   {IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}},
		"box.example": {DNSNames: []string{"box.example"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}},
		"node.lan":    {DNSNames: []string{"*.lan"}},
	} {
		cert, key := a.sign(t, &template)
		encoded, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), 0o600))
		require.NoError(t, os.WriteFile(files.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600))
		c, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: t.TempDir(), Addr: ":6443", Certificates: files})
		require.NoError(t, err)
		config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
		require.NoError(t, err)
		assert.Equal(t, "https://127.0.0.1:6443", config.Host)
		assert.Equal(t, name, config.ServerName)
	}
}

// SV-13: a file that cannot be read now may have the CA of all kubeconfigs.
func TestCredentials_UnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	loadCredentials(t, dir)
	before := snapshotOf(t, dir)
	for _, name := range []string{"ca.crt", "ca.key", "token"} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.Rename(file, file+".old"))
		require.NoError(t, os.Symlink(file, file)) // a loop
		_, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{Dir: dir, Addr: "127.0.0.1:6443", NodeName: nodeName})
		require.ErrorContains(t, err, name)
		require.NoError(t, os.Rename(file+".old", file))
		loadCredentials(t, dir)
		assert.Equal(t, before, snapshotOf(t, dir), name)
	}
}

// snapshotOf returns the files of a directory.
func snapshotOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		all[e.Name()] = string(b)
	}
	return all
}
