package kube

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
)

// Limits of the requests of a node to its API server, as of a kubelet.
const (
	clientQPS   = 50
	clientBurst = 100
)

// LoadKubeconfig returns the client configuration of a kubeconfig file, with the limits
// of a kubelet. It checks what can be checked without the API server: that there are a
// server and a user with credentials. Whether its certificate is valid now is left to
// CheckClientCertificate. Certificates that the file names are read again when they change. Their
// paths are relative to its directory.
func LoadKubeconfig(file string) (*rest.Config, error) {
	if file == "" {
		return nil, errors.New("kubeconfig: no file; give the one that says how to reach the API server")
	}
	loaded, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if err := clientcmd.ResolveLocalPaths(loaded); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*loaded, loaded.CurrentContext, &clientcmd.ConfigOverrides{}, &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}).ClientConfig()
	switch {
	case err == nil:
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("kubeconfig %s: no cluster; set current-context to a context with a cluster and a user", file)
	default:
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if err := checkUser(cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	if err := checkCA(cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	cfg.QPS, cfg.Burst, cfg.UserAgent = clientQPS, clientBurst, "sublet/"+Version
	return cfg, nil
}

// checkUser returns why the API server cannot know the user.
func checkUser(cfg *rest.Config) error {
	cert, err := clientCertificate(cfg)
	if err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	if cert == nil && cfg.BearerToken == "" && cfg.BearerTokenFile == "" && cfg.Username == "" && cfg.ExecProvider == nil && cfg.AuthProvider == nil {
		if strings.HasPrefix(cfg.Host, "http://") { // client-go has dropped them
			return fmt.Errorf("server %s must be https: no credentials are sent in plain text", cfg.Host)
		}
		return errors.New("user without credentials; give its context a user with client-certificate and client-key, or with a token")
	}
	return nil
}

// clientCertificate returns the client certificate of cfg, nil if it has none.
func clientCertificate(cfg *rest.Config) (*x509.Certificate, error) {
	if cfg.CertFile == "" && len(cfg.CertData) == 0 {
		return nil, nil
	}
	copied := &rest.Config{TLSClientConfig: cfg.TLSClientConfig}
	if err := rest.LoadTLSFiles(copied); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(copied.CertData, copied.KeyData)
	if err != nil {
		return nil, fmt.Errorf("%w; give the certificate and the key that belong together", err)
	}
	return x509.ParseCertificate(pair.Certificate[0])
}

// CheckClientCertificate returns why the API server does not accept the client certificate of
// cfg now: it has expired, or is not valid yet. A node starts with such a certificate as well,
// because its clock may be wrong, and because its pods do not depend on the API server.
func CheckClientCertificate(cfg *rest.Config, now time.Time) error {
	cert, err := clientCertificate(cfg)
	switch {
	case err != nil:
		return fmt.Errorf("client certificate: %w", err)
	case cert == nil:
		return nil
	case now.After(cert.NotAfter):
		return fmt.Errorf("client certificate of %q expired at %s; replace it, or have another requested with a bootstrap kubeconfig", cert.Subject.CommonName, cert.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("client certificate of %q is valid from %s; set the clock", cert.Subject.CommonName, cert.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// checkCA returns why the certificate authority cannot be used.
func checkCA(cfg *rest.Config) error {
	var err error
	switch {
	case len(cfg.CAData) > 0:
		_, err = certutil.ParseCertsPEM(cfg.CAData)
	case cfg.CAFile != "":
		_, err = certutil.CertsFromFile(cfg.CAFile)
	}
	if err != nil {
		return fmt.Errorf("certificate-authority: %w", err)
	}
	return nil
}

// explain adds to the error of a request what to do about it, where that is known.
func explain(err error) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return fmt.Errorf("%w; the certificate-authority of the kubeconfig is not that of the API server", err)
	case errors.As(err, &name):
		return fmt.Errorf("%w; the server of the kubeconfig must have a name that is in the certificate of the API server", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w; the certificate of the API server is not valid at the time of this clock", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; the API server does not know the user of the kubeconfig: its certificate is expired or of another authority, or its token is wrong", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; the user of a node is system:node:<node name> in the group system:nodes", err)
	}
	return err
}
