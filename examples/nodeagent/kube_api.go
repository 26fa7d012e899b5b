package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// kubeAPIFlags are about kubectl without a cluster.
type kubeAPIFlags struct {
	addr     string
	writable bool
}

func (f *kubeAPIFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.addr, "kube-api", "", "host:port, such as 127.0.0.1:6443, of a Kubernetes API of this node alone, for kubectl; a kubeconfig for it is written to kube-api/kubeconfig below -root-dir. Other addresses than loopback need -tls-cert-file")
	fs.BoolVar(&f.writable, "kube-api-writable", false, "let clients of -kube-api create and change pods, which are kept below -root-dir")
}

func (f *kubeAPIFlags) check(all *flags, fail func(bad bool, format string, args ...any)) {
	fail(f.writable && f.addr == "", "-kube-api-writable needs -kube-api")
	fail(f.writable && all.kube.kubeconfig != "", "-kube-api-writable: with -kubeconfig the pods are those of the cluster; create them there")
	if f.addr == "" {
		return
	}
	_, port, err := net.SplitHostPort(f.addr)
	fail(err != nil || port == "" || port == "0", "-kube-api %q: must be host:port", f.addr)
	fail(err == nil && !isLoopback(f.addr) && all.listen.tlsCert == "", "-kube-api %q: other machines can reach this address; give -tls-cert-file and -tls-private-key-file, or use 127.0.0.1", f.addr)
}

// kubeAPI is the Kubernetes API of this node alone. It runs inside of the agent, so that the
// root directory is locked.
type kubeAPI struct {
	flags  *flags
	log    *slog.Logger
	events *kubeapi.Events
	store  *kubeapi.Store // nil: read-only

	// Set before it runs.
	agent  *agent.Agent
	server server.Config // what all servers of the agent have
}

// newKubeAPI returns nil without -kube-api.
func newKubeAPI(f *flags, log *slog.Logger) *kubeAPI {
	if f.kubeAPI.addr == "" {
		return nil
	}
	k := &kubeAPI{flags: f, log: log, events: kubeapi.NewEvents()}
	if f.kubeAPI.writable {
		k.store = kubeapi.NewStore(filepath.Join(f.rootDir, "kube-api", "pods"))
	}
	return k
}

// check reads the certificate once, so that a mistake in it is an error of the flags.
func (k *kubeAPI) check() error {
	if k == nil {
		return nil
	}
	if err := k.flags.config.limitTLS(new(server.Config)); err != nil {
		return fmt.Errorf("-kube-api: %w", err)
	}
	if k.certificates().Cert == "" {
		return nil
	}
	if _, err := k.certificates().TLS(); err != nil {
		return fmt.Errorf("-kube-api %q: -tls-cert-file, -tls-private-key-file: %w; give a certificate and its private key, PEM", k.flags.kubeAPI.addr, err)
	}
	return nil
}

// recorder returns one that keeps events for clients, too.
func (k *kubeAPI) recorder(next agent.Recorder) agent.Recorder {
	if k == nil {
		return next
	}
	return eventRecorder{next, k.events}
}

// eventRecorder records with all.
type eventRecorder []agent.Recorder

// Record implements agent.Recorder.
func (all eventRecorder) Record(e *corev1.Event) {
	for _, r := range all {
		r.Record(e)
	}
}

// options makes it a part of the agent.
func (k *kubeAPI) options() []agent.Option {
	if k == nil {
		return nil
	}
	opts := []agent.Option{agent.WithRunner("kube-api", func(*agent.Components) (agent.Runner, error) { return k, nil })}
	if k.store != nil {
		opts = append(opts, agent.WithSource("kubectl", k.store), agent.WithStatusSink(k.store))
	}
	return opts
}

// Run implements agent.Runner.
func (k *kubeAPI) Run(ctx context.Context) error {
	creds, err := kubeapi.LoadCredentials(kubeapi.CredentialsConfig{
		Dir: filepath.Join(k.flags.rootDir, "kube-api"), Addr: k.flags.kubeAPI.addr, NodeName: k.flags.nodeName, Logger: k.log,
		Certificates: k.certificates(),
	})
	if err != nil {
		return err
	}
	a := k.agent
	api, err := kubeapi.New(kubeapi.Config{
		NodeName: k.flags.nodeName, Pods: a.Pods, Watch: a.Watch, Operator: a.Operator,
		Node: k.node, Stats: a.CPUAndMemoryStats, Events: k.events, Store: k.store, Logger: k.log,
		Objects: a.Components().Sources.Objects,
	})
	if err != nil {
		return err
	}
	cfg := k.server
	cfg.Addr, cfg.AllowNonLoopback, cfg.TLS = k.flags.kubeAPI.addr, !isLoopback(k.flags.kubeAPI.addr), creds.TLS()
	cfg.Authenticators, cfg.Authorizer, cfg.KubeAPI = []server.Authenticator{creds}, kubeapi.AllowAll(), api
	if err := k.flags.config.limitTLS(&cfg); err != nil {
		return fmt.Errorf("-kube-api: %w", err)
	}
	srv, err := server.New(cfg)
	if err != nil {
		return fmt.Errorf("-kube-api: %w", err)
	}
	k.log.Info("kubectl can connect", slog.String("kubeconfig", creds.Kubeconfig()), slog.String("address", k.flags.kubeAPI.addr), slog.Bool("writable", k.store != nil))
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{api.Run, creds.Run, srv.Run} {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// certificates are those that the user brings for an address that other machines reach.
func (k *kubeAPI) certificates() server.CertificateFiles {
	if isLoopback(k.flags.kubeAPI.addr) {
		return server.CertificateFiles{}
	}
	return server.CertificateFiles{Cert: k.flags.listen.tlsCert, Key: k.flags.listen.tlsKey, Logger: k.log}
}

// node returns the Node object that a cluster would have.
func (k *kubeAPI) node(ctx context.Context) (*corev1.Node, error) {
	status, err := k.agent.NodeStatus(ctx)
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.flags.nodeName, Labels: k.flags.labels()}, Status: status}, err
}
