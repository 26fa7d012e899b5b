package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/kube"
)

// kubeFlags are about the cluster, with the kubelet's names.
type kubeFlags struct {
	kubeconfig, bootstrap string
	certDir               string
	taints                string
	register              bool
}

func (f *kubeFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of a cluster: this machine is a node of it and runs the pods that are bound to it. User: system:node:<-node-name> in the group system:nodes")
	fs.StringVar(&f.bootstrap, "bootstrap-kubeconfig", "", "credentials to request a client certificate with, if -kubeconfig does not exist or its certificate has expired; -kubeconfig is written, and the certificate renewed")
	fs.StringVar(&f.certDir, "cert-dir", "", "directory of requested certificates. Default: pki below -root-dir")
	fs.StringVar(&f.taints, "register-with-taints", "", "taints of the Node when it is registered: key=value:effect,…")
	fs.BoolVar(&f.register, "register-node", true, "create the Node object if it does not exist")
}

func (f *kubeFlags) check(fail func(bad bool, format string, args ...any)) {
	fail(f.bootstrap != "" && f.kubeconfig == "", "-bootstrap-kubeconfig needs -kubeconfig, the file to write")
	fail(f.certDir != "" && !filepath.IsAbs(f.certDir), "-cert-dir %q: must be an absolute path", f.certDir)
	_, err := parseTaints(f.taints)
	fail(err != nil, "-register-with-taints: %w", err)
}

// parseTaints reads key=value:effect,key:effect.
func parseTaints(list string) ([]corev1.Taint, error) {
	var taints []corev1.Taint
	for _, entry := range split(list) {
		name, effect, ok := strings.Cut(entry, ":")
		key, value, _ := strings.Cut(name, "=")
		t := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			ok = false
		}
		if !ok || key == "" {
			return nil, fmt.Errorf("%q must be key=value:effect with effect NoSchedule, PreferNoSchedule or NoExecute", entry)
		}
		taints = append(taints, t)
	}
	return taints, nil
}

// cluster returns the options that make the agent a node of a cluster; none without
// -kubeconfig. It blocks until a requested certificate is signed.
func (f *flags) cluster(ctx context.Context, log *slog.Logger) ([]agent.Option, error) {
	if f.kube.kubeconfig == "" {
		return nil, nil
	}
	cfg, renewal, err := f.clientConfig(ctx, log)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig: %w", err)
	}
	k, err := kube.New(kube.Config{Client: client, NodeName: f.nodeName, Logger: log})
	if err != nil {
		return nil, err
	}
	taints, err := parseTaints(f.kube.taints)
	if err != nil {
		return nil, err
	}
	opts, err := k.NodeOptions(kube.NodeConfig{Labels: f.labels(), Taints: taints, NoRegistration: !f.kube.register}, filepath.Join(f.rootDir, "sources", "api"))
	return append(opts, renewal...), err
}

// clientConfig returns how to reach the API server, and the option that renews the
// certificate, if the cluster signs it.
func (f *flags) clientConfig(ctx context.Context, log *slog.Logger) (*rest.Config, []agent.Option, error) {
	if f.kube.bootstrap == "" {
		cfg, err := kube.LoadKubeconfig(f.kube.kubeconfig)
		return cfg, nil, err
	}
	dir := f.kube.certDir
	if dir == "" {
		dir = filepath.Join(f.rootDir, "pki")
	}
	cert, err := kube.NewClientCertificate(kube.ClientCertificateConfig{
		NodeName: f.nodeName, BootstrapKubeconfig: f.kube.bootstrap, Kubeconfig: f.kube.kubeconfig, Dir: dir, Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	cfg, err := cert.Config(ctx)
	return cfg, []agent.Option{agent.WithRunner("client certificate", func(*agent.Components) (agent.Runner, error) { return cert, nil })}, err
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
