package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/sublet-dev/agent/internal/logattr"
)

// reloadPeriod is how often files of certificates are read again.
const reloadPeriod = 10 * time.Second

// CertificateFiles are the certificate and the key of a server, PEM.
type CertificateFiles struct {
	Cert, Key string
	Logger    *slog.Logger // default: discard
}

// TLS returns a configuration that uses the files, or an error if they are not valid.
// They are read again while it is used, so they can be replaced; a pair that is not
// valid is logged, and the previous one remains in use.
func (f CertificateFiles) TLS() (*tls.Config, error) {
	pair := &reloaded[*tls.Certificate]{files: []string{f.Cert, f.Key}, log: f.Logger, parse: func(b [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(b[0], b[1])
		return &pair, err
	}}
	if _, err := pair.get(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() },
	}, nil
}

// ClientCertificates authenticates clients that have a certificate for client
// authentication that one of the CAs of a file signed, PEM. Its common name is the
// user, its organizations are the groups. The file can be replaced like those of
// CertificateFiles.
type ClientCertificates struct {
	CAFile string
	Logger *slog.Logger // default: discard

	once sync.Once
	cas  *reloaded[*x509.CertPool]
}

// Check returns an error if the file is not valid.
func (c *ClientCertificates) Check() error {
	_, err := c.pool()
	return err
}

func (c *ClientCertificates) pool() (*x509.CertPool, error) {
	c.once.Do(func() {
		c.cas = &reloaded[*x509.CertPool]{files: []string{c.CAFile}, log: c.Logger, parse: func(b [][]byte) (*x509.CertPool, error) {
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(b[0]) {
				return nil, errors.New("contains no certificate")
			}
			return pool, nil
		}}
	})
	return c.cas.get()
}

// Authenticate implements Authenticator. It verifies the certificate for each request,
// so that a connection does not outlast a CA.
func (c *ClientCertificates) Authenticate(r *http.Request) (*authenticationv1.UserInfo, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil //nolint:nilnil // no credentials
	}
	roots, err := c.pool()
	if err != nil {
		return nil, err
	}
	intermediates := x509.NewCertPool()
	for _, cert := range r.TLS.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	leaf := r.TLS.PeerCertificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	if leaf.Subject.CommonName == "" {
		return nil, errors.New("client certificate: no common name")
	}
	return &authenticationv1.UserInfo{Username: leaf.Subject.CommonName, Groups: leaf.Subject.Organization}, nil
}

// tlsConfig returns Config.TLS with what the server needs: client certificates are
// optional, and authenticators verify them.
func (s *Server) tlsConfig() *tls.Config {
	cfg := s.cfg.TLS.Clone()
	cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS12)
	// Streams take over connections, of which there is a limit: neither goes together with HTTP/2.
	cfg.NextProtos = slices.DeleteFunc(slices.Clone(cfg.NextProtos), func(protocol string) bool { return protocol == "h2" })
	if cfg.ClientAuth == tls.NoClientCert && len(s.cfg.Authenticators) > 0 {
		cfg.ClientAuth = tls.RequestClientCert
	}
	return cfg
}

// reloaded is what files contain, read again at most once per reloadPeriod.
type reloaded[T any] struct {
	files []string
	parse func([][]byte) (T, error)
	log   *slog.Logger

	current atomic.Pointer[reading[T]]
	reading atomic.Bool // one caller reads; others use the current value
}

// reading is the result of reading the files at a time.
type reading[T any] struct {
	at      time.Time
	content [][]byte // of the last attempt
	value   T        // of the last valid one
}

// get returns the value of the files, or an error if they were never valid.
func (r *reloaded[T]) get() (T, error) {
	now := r.current.Load()
	if now != nil && (time.Since(now.at) < reloadPeriod || !r.reading.CompareAndSwap(false, true)) {
		return now.value, nil
	}
	if now != nil {
		defer r.reading.Store(false)
	}
	content, err := readFiles(r.files)
	if err == nil && now != nil && sameContent(content, now.content) {
		r.current.Store(&reading[T]{at: time.Now(), content: content, value: now.value})
		return now.value, nil
	}
	var value T
	if err == nil {
		value, err = r.parse(content)
	}
	switch {
	case err == nil:
		r.current.Store(&reading[T]{at: time.Now(), content: content, value: value})
		return value, nil
	case now == nil:
		return value, fmt.Errorf("%v: %w", r.files, err)
	}
	if r.log != nil {
		r.log.Warn("certificate not reloaded, previous one stays in use", slog.Any("files", r.files), logattr.Err(err))
	}
	r.current.Store(&reading[T]{at: time.Now(), content: content, value: now.value})
	return now.value, nil
}

func readFiles(files []string) ([][]byte, error) {
	all := make([][]byte, len(files))
	for i, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all[i] = b
	}
	return all, nil
}

func sameContent(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
