package kubeapi

import (
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// SV-13: the clock of a board may start in 1970 each time, or be wrong for a while. Copies of the
// kubeconfig outlast that, and at each time there is a certificate that is valid by that clock.
func TestCredentials_WrongClock(t *testing.T) {
	c, err := LoadCredentials(CredentialsConfig{Dir: t.TempDir(), Addr: "127.0.0.1:6443"})
	require.NoError(t, err)
	read := func(name string) string {
		b, err := os.ReadFile(c.path(name))
		require.NoError(t, err)
		return string(b)
	}
	isServed := func(now time.Time) {
		t.Helper()
		require.NoError(t, c.renew(now))
		roots := x509.NewCertPool()
		require.True(t, roots.AppendCertsFromPEM([]byte(read(caCertFile))))
		p, err := readPair(c.path(certFile), c.path(keyFile))
		require.NoError(t, err)
		_, err = p.cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now})
		require.NoError(t, err)
	}
	const year = 365 * 24 * time.Hour
	now := time.Now()
	for _, made := range []time.Time{now, now.Add(30 * year)} { // the second time with a new CA
		isServed(made)
		kubeconfig := read(kubeconfigFile)
		for _, at := range []time.Time{time.Unix(30, 0), now, now.Add(-2 * year), now, now.Add(5 * year), now} {
			isServed(at)
			assert.Equal(t, kubeconfig, read(kubeconfigFile), "at %s", at)
		}
	}
}
