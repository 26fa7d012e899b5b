package podsource_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podsource"
)

// SR-6: a server that knows times of changes only, as one of files may, says of the second change in a second that nothing
// has changed since the first.
func TestHTTP_SecondChangeInOneSecond(t *testing.T) {
	for name, withDate := range map[string]bool{"with the time of the server": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var content, modified atomic.Value
				put := func(version string) {
					content.Store(manifest("x", version))
					modified.Store(time.Now().UTC().Format(http.TimeFormat))
				}
				var sent atomic.Int32
				s := &fakeServer{}
				s.serves(func(w http.ResponseWriter, r *http.Request) {
					if withDate {
						w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
					}
					if r.Header.Get("If-Modified-Since") == modified.Load() {
						w.WriteHeader(http.StatusNotModified)
						return
					}
					sent.Add(1)
					w.Header().Set("Last-Modified", modified.Load().(string))
					fmt.Fprint(w, content.Load())
				})
				put("1")
				r := start(t, ask(t, podsource.HTTPConfig{Transport: s}))
				assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
				time.Sleep(500 * time.Millisecond)
				put("2")
				time.Sleep(20 * time.Second)
				assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a x-n1=2"}, r.delivered())

				time.Sleep(10 * time.Minute)
				assert.Empty(t, r.delivered())
				assert.EqualValues(t, 2, sent.Load(), "an old change is asked for by its time")
			})
		})
	}
}

// SR-6: a response that answers no question does not resolve an error.
func TestHTTP_NotModifiedWithoutCondition(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &fakeServer{}
		s.says(http.StatusNotModified, "")
		r := start(t, ask(t, podsource.HTTPConfig{Transport: s}))
		assert.Empty(t, r.delivered())
		assert.Contains(t, r.errors(), "server responded 304")

		s.says(http.StatusOK, manifest("x", "1")+"---\nkind: [")
		time.Sleep(20 * time.Second)
		assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
		assert.Contains(t, r.errors(), "document 2")
		s.says(http.StatusNotModified, "")
		time.Sleep(20 * time.Second)
		assert.Empty(t, r.delivered())
		assert.NotEmpty(t, r.errors())
		assert.False(t, r.mux.HasSynced("a"))
	})
}

// SR-6: a certificate that has expired is one error, although each attempt is at another time.
func TestHTTP_ExpiredCertificate(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	cert := srv.Certificate()
	srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	bubble(t, func(t *testing.T) {
		began := time.Now()
		s := ask(t, podsource.HTTPConfig{Transport: roundTripFunc(func(*http.Request) (*http.Response, error) {
			_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: cert.NotAfter.Add(time.Hour + time.Since(began))})
			return nil, &tls.CertificateVerificationError{Err: err}
		})})
		r := start(t, s)
		synctest.Wait()
		first := r.mux.Errors()
		require.Len(t, first, 1)
		assert.Contains(t, first[0].Error(), "certificate has expired or is not yet valid: now is after 20")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, first, r.mux.Errors())
	})
}
