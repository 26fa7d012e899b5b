package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/sleep"
)

// ClientCertificateConfig describes how a node gets its client certificate. All fields
// but Hooks and Logger are required.
type ClientCertificateConfig struct {
	NodeName string
	// BootstrapKubeconfig has the credentials for the first certificate signing request,
	// usually a bootstrap token.
	BootstrapKubeconfig string
	Kubeconfig          string // is written, and used from then on
	Dir                 string // of certificates and keys, 0700
	Hooks               CertificateHooks
	Logger              *slog.Logger
}

// ClientCertificate is a client certificate that the cluster signs for this node, and
// renews before it expires.
type ClientCertificate struct {
	cfg   ClientCertificateConfig
	store certificate.FileStore
}

// NewClientCertificate validates cfg and makes its directory.
func NewClientCertificate(cfg ClientCertificateConfig) (*ClientCertificate, error) {
	var errs []error
	for field, value := range map[string]string{"NodeName": cfg.NodeName, "BootstrapKubeconfig": cfg.BootstrapKubeconfig, "Kubeconfig": cfg.Kubeconfig, "Dir": cfg.Dir} {
		if value == "" {
			errs = append(errs, fmt.Errorf("kube: ClientCertificateConfig.%s: required", field))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	setDefault(&cfg.Logger, slog.New(slog.DiscardHandler))
	dir, err := filepath.Abs(cfg.Dir) // the kubeconfig may be in another directory
	if err != nil {
		return nil, fmt.Errorf("kube: directory of certificates: %w", err)
	}
	cfg.Dir = dir
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("kube: directory of certificates: %w", err)
	}
	store, err := certificate.NewFileStoreWithLogger(logr.FromSlogHandler(cfg.Logger.Handler()), "kubelet-client", cfg.Dir, cfg.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("kube: certificates in %s: %w", cfg.Dir, err)
	}
	setAsideDamaged(store, cfg.Logger)
	return &ClientCertificate{cfg: cfg, store: store}, nil
}

// Config returns the client configuration of the node. A certificate that has expired is used as
// well, so that the node starts without the API server; Run requests another one. If there is none,
// Config requests one with the bootstrap credentials, waits until it is signed or ctx is
// done, and writes the kubeconfig. Clients read a renewed certificate by themselves.
func (c *ClientCertificate) Config(ctx context.Context) (*rest.Config, error) {
	cfg, err := LoadKubeconfig(c.cfg.Kubeconfig)
	if err == nil {
		if err = CheckClientCertificate(cfg, time.Now()); err == nil {
			return cfg, nil
		}
		c.cfg.Logger.Warn("client certificate not valid", slog.String("node", c.cfg.NodeName), logattr.Err(err))
		if !c.isReplaced(cfg) {
			return cfg, nil
		}
	}
	renewed, err := c.setUp(ctx, cfg, err)
	if err != nil && cfg != nil {
		c.cfg.Logger.Warn("client certificate not renewed", slog.String("node", c.cfg.NodeName), logattr.Err(err))
		return cfg, nil
	}
	return renewed, err
}

// setUp makes a certificate the one that Run renews, and the kubeconfig that of it. cfg is that of the
// present kubeconfig, or nil; cause is what is wrong with it.
func (c *ClientCertificate) setUp(ctx context.Context, cfg *rest.Config, cause error) (*rest.Config, error) {
	bootstrap, err := LoadKubeconfig(c.cfg.BootstrapKubeconfig)
	if err != nil {
		return nil, errors.Join(cause, fmt.Errorf("bootstrap: %w", err))
	}
	switch _, errStored := c.store.Current(); {
	case errStored == nil:
	case cfg != nil:
		err = c.copyCertificate(cfg)
	default:
		c.cfg.Logger.Info("client certificate requested", slog.String("node", c.cfg.NodeName), slog.String("reason", cause.Error()))
		err = c.request(ctx, bootstrap)
	}
	if err != nil {
		return nil, err
	}
	if err := c.writeKubeconfig(bootstrap); err != nil {
		return nil, err
	}
	return LoadKubeconfig(c.cfg.Kubeconfig)
}

// setAsideDamaged renames the current certificate if it can never be used, as after its file system has
// lost data. Another is requested then.
func setAsideDamaged(store certificate.FileStore, log *slog.Logger) {
	file := store.CurrentPath()
	data, err := os.ReadFile(file) //nolint:gosec // a path of ours
	if err != nil {
		return // there is none, or the store reports the error
	}
	if _, err = tls.X509KeyPair(data, data); err == nil {
		return
	}
	log.Warn("certificate damaged and set aside", slog.String("path", file), logattr.Err(errors.Join(err, atomicfile.SetAside(file))))
}

// isReplaced reports whether the certificate has expired, and is not where Run renews it.
func (c *ClientCertificate) isReplaced(cfg *rest.Config) bool {
	cert, err := clientCertificate(cfg)
	return err == nil && cert != nil && time.Now().After(cert.NotAfter) && cfg.CertFile != c.store.CurrentPath()
}

// copyCertificate makes the certificate of cfg the one that Run renews.
func (c *ClientCertificate) copyCertificate(cfg *rest.Config) error {
	copied := &rest.Config{TLSClientConfig: cfg.TLSClientConfig}
	err := rest.LoadTLSFiles(copied)
	if err == nil {
		_, err = c.store.Update(copied.CertData, privateKey(copied.KeyData))
	}
	if err != nil {
		return fmt.Errorf("copy client certificate: %w", err)
	}
	return nil
}

// privateKey returns the private key in data, which may have other blocks before it. The store
// takes the first block for the key.
func privateKey(data []byte) []byte {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return pem.EncodeToMemory(block)
		}
	}
	return nil
}

// request waits until the cluster has signed a certificate.
func (c *ClientCertificate) request(ctx context.Context, bootstrap *rest.Config) error {
	manager, err := c.manager(ctx, func(*tls.Certificate) (kubernetes.Interface, error) { return kubernetes.NewForConfig(bootstrap) })
	if err != nil {
		return err
	}
	manager.Start()
	defer manager.Stop()
	for manager.Current() == nil {
		if sleep.For(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("client certificate not signed: %w; approve the certificate signing request of this node", ctx.Err())
		}
	}
	return nil
}

// Run renews the certificate when most of its life is over, until ctx is done. In place of one
// that has expired it requests another with the bootstrap credentials. A kubeconfig that refers to
// another certificate is left alone.
func (c *ClientCertificate) Run(ctx context.Context) error {
	cfg, err := LoadKubeconfig(c.cfg.Kubeconfig)
	if err != nil || cfg.CertFile != c.store.CurrentPath() {
		if err == nil && (cfg.CertFile != "" || len(cfg.CertData) > 0) {
			c.cfg.Logger.Warn("client certificate is not renewed, the kubeconfig has it from elsewhere",
				slog.String("dir", c.cfg.Dir), slog.Time("expiry", ClientCertificateExpiry(cfg)))
		}
		<-ctx.Done()
		return nil // there is nothing to renew
	}
	clients := func(valid *tls.Certificate) (kubernetes.Interface, error) {
		if valid != nil {
			return kubernetes.NewForConfig(cfg)
		}
		bootstrap, err := LoadKubeconfig(c.cfg.BootstrapKubeconfig) // its token may be new
		if err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
		return kubernetes.NewForConfig(bootstrap)
	}
	return runManager(ctx, c.cfg.Logger, time.Now, func() (certificate.Manager, error) { return c.manager(ctx, clients) })
}

func (c *ClientCertificate) manager(ctx context.Context, clients certificate.ClientsetFunc) (certificate.Manager, error) {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(c.cfg.Logger.Handler()))
	manager, err := certificate.NewManager(&certificate.Config{
		ClientsetFn:      clients,
		Template:         &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + c.cfg.NodeName, Organization: []string{"system:nodes"}}},
		SignerName:       certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:        certificate.DefaultKubeletClientGetUsages,
		CertificateStore: c.store, Ctx: &ctx,
		CertificateRenewFailure: c.cfg.Hooks.failures(c.cfg.Logger), CertificateRotation: c.cfg.Hooks.rotations(c.cfg.Logger),
	})
	if err != nil {
		return nil, fmt.Errorf("kube: client certificate: %w", err)
	}
	return manager, nil
}

// writeKubeconfig writes the kubeconfig with the server of the bootstrap kubeconfig, its proxy, and
// the certificate of this node.
func (c *ClientCertificate) writeKubeconfig(bootstrap *rest.Config) error {
	const name = "node"
	pair := c.store.CurrentPath()
	if err := os.MkdirAll(filepath.Dir(c.cfg.Kubeconfig), 0o700); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server: bootstrap.Host, TLSServerName: bootstrap.ServerName, InsecureSkipTLSVerify: bootstrap.Insecure,
			CertificateAuthority: bootstrap.CAFile, CertificateAuthorityData: bootstrap.CAData, ProxyURL: proxyURL(bootstrap),
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificate: pair, ClientKey: pair}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err == nil {
		file := c.cfg.Kubeconfig
		if target, err := filepath.EvalSymlinks(file); err == nil {
			file = target // a link stays
		}
		err = errors.Join(atomicfile.RemovePartial(file), atomicfile.Write(file, text))
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// proxyURL returns the proxy of a kubeconfig, or "".
func proxyURL(cfg *rest.Config) string {
	if cfg.Proxy == nil {
		return ""
	}
	proxy, err := cfg.Proxy(&http.Request{URL: &url.URL{}}) // it is the same for all requests
	if err != nil || proxy == nil {
		return ""
	}
	return proxy.String()
}

// ServingCertificateConfig describes a certificate of the node's HTTPS server that the
// cluster signs. An administrator, or a controller, has to approve the requests.
type ServingCertificateConfig struct {
	Dir       string // of certificates and keys, 0700. Required
	Addresses func() (ips []string, hostnames []string)
	Hooks     CertificateHooks
	Logger    *slog.Logger
}

// ServingCertificate is a serving certificate of this node. Its methods may be called
// from any goroutine.
type ServingCertificate struct {
	k   *Kube
	cfg ServingCertificateConfig

	mu      sync.Mutex // guards manager
	manager certificate.Manager
}

// ErrNoServingCertificate is returned by GetCertificate until the first certificate is
// signed.
var ErrNoServingCertificate = errors.New("serving certificate not signed yet; approve the certificate signing request of this node")

// ServingCertificate returns the serving certificate of this node. It validates cfg.
func (k *Kube) ServingCertificate(cfg ServingCertificateConfig) (*ServingCertificate, error) {
	if cfg.Dir == "" || cfg.Addresses == nil {
		return nil, errors.New("kube: ServingCertificateConfig.Dir and Addresses: required")
	}
	setDefault(&cfg.Logger, k.cfg.Logger)
	return &ServingCertificate{k: k, cfg: cfg}, nil
}

// GetCertificate is for a tls.Config.
func (s *ServingCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	manager := s.manager
	s.mu.Unlock()
	if manager != nil {
		if cert := manager.Current(); cert != nil {
			return cert, nil
		}
	}
	return nil, ErrNoServingCertificate
}

// Run requests the certificate, and a new one when it is about to expire or the addresses
// of the node have changed, until ctx is done.
func (s *ServingCertificate) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("kube: directory of certificates: %w", err)
	}
	store, err := certificate.NewFileStoreWithLogger(logr.FromSlogHandler(s.cfg.Logger.Handler()), "kubelet-server", s.cfg.Dir, s.cfg.Dir, "", "")
	if err != nil {
		return fmt.Errorf("kube: certificates in %s: %w", s.cfg.Dir, err)
	}
	setAsideDamaged(store, s.cfg.Logger)
	logged := klog.NewContext(ctx, logr.FromSlogHandler(s.cfg.Logger.Handler()))
	return runManager(ctx, s.cfg.Logger, time.Now, func() (certificate.Manager, error) {
		manager, err := certificate.NewManager(&certificate.Config{
			ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) { return s.k.cfg.Client, nil },
			GetTemplate: s.template, SignerName: certificatesv1.KubeletServingSignerName,
			GetUsages: certificate.DefaultKubeletServingGetUsages, CertificateStore: store, Ctx: &logged,
			CertificateRenewFailure: s.cfg.Hooks.failures(s.cfg.Logger), CertificateRotation: s.cfg.Hooks.rotations(s.cfg.Logger),
		})
		if err != nil {
			return nil, fmt.Errorf("kube: serving certificate: %w", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.manager = manager
		return manager, nil
	})
}

// template returns the request for the present addresses; nil while there are none. They are sorted: the same addresses in
// another order are no reason to give up a request that is not signed yet.
func (s *ServingCertificate) template() *x509.CertificateRequest {
	ips, hostnames := s.cfg.Addresses()
	request := &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:" + s.k.cfg.NodeName, Organization: []string{"system:nodes"}},
		DNSNames: slices.Sorted(slices.Values(hostnames)),
	}
	for _, text := range slices.Sorted(slices.Values(ips)) {
		if ip := net.ParseIP(text); ip != nil {
			request.IPAddresses = append(request.IPAddresses, ip)
		}
	}
	if len(request.IPAddresses)+len(request.DNSNames) == 0 {
		return nil
	}
	return request
}
