package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/runtime/cri/credentialprovider"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeauth"
)

// kubeFlags are about the cluster, with the kubelet's names.
type kubeFlags struct {
	kubeconfig, bootstrap string
	certDir               string
	taints                string
	cloudProvider         string
	register              bool
}

// externalCloud is the only cloud provider of a kubelet.
const externalCloud = "external"

func (f *kubeFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of a cluster: this machine is a node of it and runs the pods that are bound to it. User: system:node:<-node-name> in the group system:nodes")
	fs.StringVar(&f.bootstrap, "bootstrap-kubeconfig", "", "credentials to request a client certificate with, if -kubeconfig does not exist or its certificate has expired; -kubeconfig is written, and the certificate renewed")
	fs.StringVar(&f.certDir, "cert-dir", "", "directory of requested certificates. Default: pki below -root-dir")
	fs.StringVar(&f.taints, "register-with-taints", "", "taints of the Node when it is registered: key=value:effect,…")
	fs.StringVar(&f.cloudProvider, "cloud-provider", "", "external: the cloud controller manager of the cluster initializes the Node and sets its addresses")
	fs.BoolVar(&f.register, "register-node", true, "create the Node object if it does not exist")
}

func (f *kubeFlags) check(nodeName string, fail func(bad bool, format string, args ...any)) {
	if bad := validation.IsDNS1123Subdomain(nodeName); f.kubeconfig != "" && len(bad) > 0 {
		fail(true, "-node-name %q: not the name of a Node: %s", nodeName, strings.Join(bad, "; "))
	}
	fail(f.bootstrap != "" && f.kubeconfig == "", "-bootstrap-kubeconfig needs -kubeconfig, the file to write")
	fail(f.cloudProvider != "" && f.cloudProvider != externalCloud, "-cloud-provider %q: must be %s or empty", f.cloudProvider, externalCloud)
	fail(f.cloudProvider != "" && f.kubeconfig == "", "-cloud-provider needs -kubeconfig")
	fail(f.certDir != "" && !filepath.IsAbs(f.certDir), "-cert-dir %q: must be an absolute path", f.certDir)
}

// cluster is the connection of this node to its cluster.
type cluster struct {
	client  kubernetes.Interface
	kube    *kube.Kube
	opts    []agent.Option
	serving *kube.ServingCertificate // nil if the certificate is given
}

// lateAccounts are the service accounts of the cluster, to which the connection is made after
// the options of the runtime.
type lateAccounts struct {
	credentialprovider.ServiceAccounts
}

// cluster returns the connection to the cluster; nil without -kubeconfig. It blocks until
// the first client certificate is signed, if that has to be requested.
func (f *flags) cluster(ctx context.Context, plugins pluginDirs, accounts *lateAccounts, log *slog.Logger) (*cluster, error) {
	if f.kube.kubeconfig == "" {
		return nil, nil //nolint:nilnil // no cluster
	}
	cfg, renewal, err := f.clientConfig(ctx, log)
	if err != nil {
		return nil, err
	}
	c, err := f.connect(cfg, renewal, plugins, accounts, log)
	if err != nil {
		return nil, asUsageError(err)
	}
	return c, nil
}

// connect returns the connection by cfg. It does no I/O.
func (f *flags) connect(cfg *rest.Config, renewal []agent.Option, plugins pluginDirs, accounts *lateAccounts, log *slog.Logger) (*cluster, error) {
	if k := f.config.effective; k.Given("kubeAPIQPS") || k.Given("kubeAPIBurst") {
		cfg.QPS, cfg.Burst = float32(*k.Kubelet().KubeAPIQPS), int(k.Kubelet().KubeAPIBurst)
	}
	f.metrics.node.ClientCertificate = func() time.Time { return kube.ClientCertificateExpiry(cfg) }
	counted := rest.CopyConfig(cfg)
	counted.Wrap(f.metrics.all.WrapTransport)
	config, err := kube.ConfigFor(counted)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig: %w", err)
	}
	config.NodeName, config.Logger = f.nodeName, log
	k, err := kube.New(config)
	if err != nil {
		return nil, err
	}
	f.metrics.node.MirrorPods = k.MirrorPods
	if f.kube.cloudProvider == externalCloud {
		f.addresses.ofNode = k.NodeAddresses
	}
	var topology func() map[string]string
	sources := filepath.Join(f.rootDir, "sources", "api")
	storage, err := k.Storage(kube.StorageConfig{Dir: filepath.Join(sources, "storage"), Topology: func() map[string]string { return topology() }})
	if err != nil {
		return nil, err
	}
	objects, err := k.Objects(kube.ObjectsConfig{Dir: filepath.Join(sources, "objects"), Refs: storage.SecretRefs})
	if err != nil {
		return nil, err
	}
	accounts.ServiceAccounts = objects
	volumes, csi, err := f.csi.options(f, storage, &topology, plugins, log)
	if err != nil {
		return nil, err
	}
	settings := f.config.effective.Kubelet()
	node := kube.NodeConfig{
		Objects: objects,
		Labels:  f.labels(), Taints: settings.RegisterWithTaints, NoRegistration: !f.kube.register,
		ProviderID: settings.ProviderID, LeaseDuration: time.Duration(settings.NodeLeaseDurationSeconds) * time.Second,
		StatusPeriod: settings.NodeStatusUpdateFrequency.Duration, ReportPeriod: settings.NodeStatusReportFrequency.Duration,
		ExternalCloudProvider: f.kube.cloudProvider == externalCloud, NodeIPs: f.nodeIPs(),
		ResetExtendedResources: f.devices.isNew,
	}
	if csi != nil {
		node.VolumesInUse, node.KnownVolumesInUse = csi.VolumesInUse, csi.KnownVolumesInUse
	}
	opts, err := k.NodeOptions(node, sources)
	if err != nil {
		return nil, err
	}
	c := &cluster{client: config.Client, kube: k, opts: slices.Concat(opts, renewal, volumes)}
	if f.listen.https != "" && f.listen.tlsCert == "" {
		err = c.requestServingCertificate(f)
	}
	return c, err
}

// requestServingCertificate has the cluster sign the certificate of the server.
func (c *cluster) requestServingCertificate(f *flags) error {
	serving, err := c.kube.ServingCertificate(kube.ServingCertificateConfig{
		Dir: f.certDir(), Addresses: f.addresses.names,
		Hooks: kube.CertificateHooks{RenewalFailed: f.metrics.all.ServingCertificateFailed, Renewed: f.metrics.all.ServingCertificateRenewed},
	})
	if err != nil {
		return err
	}
	f.metrics.node.ServingCertificate = serving.Expiry
	c.serving = serving
	c.opts = append(c.opts, agent.WithRunner("serving certificate", func(*agent.Components) (agent.Runner, error) { return serving, nil }))
	return nil
}

// secure has the cluster decide who the clients of the kubelet's API are and what they may
// do, as far as the configuration leaves it to the cluster. A question that the API server does not answer is denied.
func (c *cluster) secure(cfg *server.Config, k *v1beta1.KubeletConfiguration) error {
	if *k.Authentication.Webhook.Enabled {
		tokens, err := kubeauth.NewTokens(kubeauth.TokensConfig{
			Reviews: c.client.AuthenticationV1().TokenReviews(), TTL: k.Authentication.Webhook.CacheTTL.Duration, Logger: cfg.Logger,
		})
		if err != nil {
			return err
		}
		cfg.Authenticators = append(cfg.Authenticators, tokens)
	}
	if k.Authorization.Mode == v1beta1.KubeletAuthorizationModeWebhook {
		access, err := kubeauth.NewAccess(kubeauth.AccessConfig{
			Reviews: c.client.AuthorizationV1().SubjectAccessReviews(), AllowedTTL: k.Authorization.Webhook.CacheAuthorizedTTL.Duration, DeniedTTL: k.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
			Logger: cfg.Logger,
		})
		if err != nil {
			return err
		}
		cfg.Authorizer = access
	}
	if c.serving != nil {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.serving.GetCertificate}
	}
	return nil
}

// certDir returns the directory of requested certificates.
func (f *flags) certDir() string { return cmp.Or(f.kube.certDir, filepath.Join(f.rootDir, "pki")) }

// clientConfig returns how to reach the API server, and the option that renews the
// certificate, if the cluster signs it.
func (f *flags) clientConfig(ctx context.Context, log *slog.Logger) (*rest.Config, []agent.Option, error) {
	if f.kube.bootstrap == "" {
		cfg, err := kube.LoadKubeconfig(f.kube.kubeconfig)
		if err != nil {
			return nil, nil, asUsageError(err)
		}
		if invalid := kube.CheckClientCertificate(cfg, time.Now()); invalid != nil {
			log.Warn("client certificate not valid", slog.Any("err", invalid))
		}
		return cfg, nil, nil
	}
	cert, err := kube.NewClientCertificate(kube.ClientCertificateConfig{
		NodeName: f.nodeName, BootstrapKubeconfig: f.kube.bootstrap, Kubeconfig: f.kube.kubeconfig, Dir: f.certDir(),
		Hooks: kube.CertificateHooks{RenewalFailed: f.metrics.all.ClientCertificateFailed}, Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	var cfg *rest.Config
	errNotify := whileWaiting(ctx, log, "waiting for a client certificate; approve the certificate signing request of this node", func() {
		cfg, err = cert.Config(ctx)
	})
	return cfg, []agent.Option{agent.WithRunner("client certificate", func(*agent.Components) (agent.Runner, error) { return cert, nil })}, errors.Join(err, errNotify)
}

// serverPort returns the port of a TLS address as the Node reports it, or 0.
func serverPort(addr string) int32 {
	_, port, err := net.SplitHostPort(addr)
	n, errPort := strconv.ParseUint(port, 10, 16)
	if err != nil || errPort != nil {
		return 0
	}
	return int32(n)
}

// serverAddr returns the address of the server that the API server reaches.
func (f *flags) serverAddr() string {
	if f.listen.https == "" && f.listen.tlsCert != "" {
		return f.listen.addr
	}
	return f.listen.https
}
