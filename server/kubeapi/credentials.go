package kubeapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/server"
)

// The files of Credentials, all with mode 0600.
const (
	caCertFile     = "ca.crt"
	caKeyFile      = "ca.key"
	certFile       = "server.crt"
	keyFile        = "server.key"
	tokenFile      = "token"
	kubeconfigFile = "kubeconfig"
)

// OwnerName is the user that the token of Credentials authenticates.
const OwnerName = "node-owner"

// CredentialsConfig describes Credentials.
type CredentialsConfig struct {
	// Dir is the directory of the files. It is created with mode 0700. Required
	Dir string
	// Addr is host:port that clients connect to. For all addresses of the machine, as with ":6443", the kubeconfig
	// has 127.0.0.1, and a name of Certificates as its tls-server-name if they are not for that. Required
	Addr string
	// Certificates are those of the server, if other machines connect to it. Default: made
	// by Credentials, for Addr and loopback
	Certificates server.CertificateFiles
	// CAFile has the CA of Certificates for the kubeconfig, PEM. Default: clients use that
	// of their system
	CAFile string
	// NodeName is the name of the cluster and of the context in the kubeconfig. Default: "node"
	NodeName string
	Logger   *slog.Logger // default: discard
}

// Credentials are a CA, a certificate for the server and a bearer token, all of which it
// makes itself and keeps in a directory, and a kubeconfig with them. It authenticates
// clients by the token. To revoke the token, remove its file and load Credentials again; to
// revoke all, remove the directory.
type Credentials struct {
	cfg   CredentialsConfig
	token string
	tls   *tls.Config
}

var _ server.Authenticator = (*Credentials)(nil)

// LoadCredentials reads the files, and creates those that do not exist or whose certificate
// is about to expire.
func LoadCredentials(cfg CredentialsConfig) (*Credentials, error) {
	if cfg.Dir == "" || cfg.Addr == "" {
		return nil, errors.New("kubeapi: CredentialsConfig.Dir and Addr required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.NodeName == "" {
		cfg.NodeName = "node"
	}
	c := &Credentials{cfg: cfg}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	for _, name := range []string{caCertFile, caKeyFile, certFile, keyFile, tokenFile, kubeconfigFile} {
		_ = atomicfile.RemovePartial(c.path(name)) // of a process that was killed; reading the file reports the same errors
	}
	var err error
	if cfg.Certificates.Cert != "" {
		if c.tls, err = cfg.Certificates.TLS(); err != nil {
			return nil, err
		}
	}
	if err := c.renew(time.Now()); err != nil {
		return nil, fmt.Errorf("credentials of the Kubernetes API: %w", err)
	}
	if c.tls == nil {
		c.tls, err = server.CertificateFiles{Cert: c.path(certFile), Key: c.path(keyFile), Logger: cfg.Logger}.TLS()
	}
	return c, err
}

func (c *Credentials) path(name string) string { return filepath.Join(c.cfg.Dir, name) }

// Kubeconfig returns the path of the kubeconfig.
func (c *Credentials) Kubeconfig() string { return c.path(kubeconfigFile) }

// TLS returns a configuration with the newest certificate.
func (c *Credentials) TLS() *tls.Config { return c.tls }

// Authenticate implements server.Authenticator.
func (c *Credentials) Authenticate(r *http.Request) (*authenticationv1.UserInfo, error) {
	scheme, got, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, nil //nolint:nilnil // no token, no user
	}
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(c.token))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return nil, errors.New("invalid bearer token")
	}
	return &authenticationv1.UserInfo{Username: OwnerName}, nil
}

// checkPeriod is how often certificates are checked. After the clock was set, none may be valid.
const checkPeriod = time.Minute

// Run renews the certificate before it expires, until ctx is done. Clients need nothing new
// for it: it is of the same CA.
func (c *Credentials) Run(ctx context.Context) error {
	for sleep.For(ctx, checkPeriod) == nil {
		if err := c.renew(time.Now()); err != nil {
			c.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "renewing the certificate of the Kubernetes API failed", logattr.Err(err))
		}
	}
	return nil
}

// renew creates what does not exist or expires soon.
func (c *Credentials) renew(now time.Time) error {
	ca, err := c.renewCertificates(now)
	if err != nil {
		return err
	}
	if err := c.loadToken(); err != nil {
		return err
	}
	return c.writeIfChanged(kubeconfigFile, c.kubeconfig(ca))
}

// renewCertificates renews the certificates that are our own, and returns the CA for the
// kubeconfig.
func (c *Credentials) renewCertificates(now time.Time) ([]byte, error) {
	switch {
	case c.cfg.CAFile != "":
		return os.ReadFile(c.cfg.CAFile)
	case c.cfg.Certificates.Cert != "":
		return nil, nil
	}
	ca, err := readPair(c.path(caCertFile), c.path(caKeyFile))
	if isUnreadable(err) {
		return nil, err
	}
	if err != nil || expiresSoon(ca.cert, caValidity, now) {
		if ca, err = newCA(c.cfg.NodeName, now); err == nil {
			err = c.write(map[string][]byte{caCertFile: ca.certPEM, caKeyFile: ca.keyPEM})
		}
	}
	if err != nil {
		return nil, err
	}
	pair, err := readPair(c.path(certFile), c.path(keyFile))
	// One that is not valid yet was made, or is checked, while the clock was wrong.
	if err != nil || expiresSoon(pair.cert, certValidity, now) || now.Before(pair.cert.NotBefore) || pair.cert.CheckSignatureFrom(ca.cert) != nil || !covers(pair.cert, c.cfg.Addr) {
		if pair, err = ca.issue(c.cfg.Addr, now); err == nil {
			err = c.write(map[string][]byte{certFile: pair.certPEM, keyFile: pair.keyPEM})
		}
	}
	return ca.certPEM, err
}

// isUnreadable reports whether a file is there and cannot be read, as for want of file descriptors. It is
// not replaced: what it has may be valid, and a new CA would end all copies of the kubeconfig.
func isUnreadable(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok && !errors.Is(err, fs.ErrNotExist)
}

// loadToken reads the token once, or makes one.
func (c *Credentials) loadToken() error {
	if c.token != "" {
		return nil
	}
	b, err := os.ReadFile(c.path(tokenFile))
	if token := strings.TrimSpace(string(b)); err == nil && len(token) >= minToken {
		c.token = token
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	random := make([]byte, minToken/2)
	_, _ = rand.Read(random) // never fails
	c.token = hex.EncodeToString(random)
	return c.write(map[string][]byte{tokenFile: []byte(c.token + "\n")})
}

// minToken is the length of a token, 256 bits in hexadecimal.
const minToken = 64

func (c *Credentials) write(files map[string][]byte) error {
	for name, b := range files {
		if err := atomicfile.Write(c.path(name), b); err != nil {
			return err
		}
	}
	return nil
}

// writeIfChanged leaves a file alone that is as it should be.
func (c *Credentials) writeIfChanged(name string, b []byte) error {
	info, err := os.Lstat(c.path(name))
	old, errRead := os.ReadFile(c.path(name))
	if err == nil && errRead == nil && string(old) == string(b) && info.Mode().Perm() == 0o600 {
		return nil
	}
	return atomicfile.Write(c.path(name), b)
}
