// Command clusternode is a node of a Kubernetes cluster: it registers, renews its lease, and runs and reports the pods bound to it.
//
//	clusternode -kubeconfig /etc/kubernetes/node.kubeconfig -node-name node-1 -runtime-endpoint unix:///run/containerd/containerd.sock
//
// The user of the kubeconfig is system:node:NAME in the group system:nodes. SIGTERM leaves pods running; the next agent adopts them.
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
)

type flags struct{ kubeconfig, nodeName, endpoint, rootDir, manifests string }

func main() {
	var f flags
	flag.StringVar(&f.kubeconfig, "kubeconfig", "", "file that says how to reach the API server")
	flag.StringVar(&f.nodeName, "node-name", "", "name of the Node")
	flag.StringVar(&f.endpoint, "runtime-endpoint", "", "CRI socket of the runtime; empty: a simulated one")
	flag.StringVar(&f.rootDir, "root-dir", "/var/lib/clusternode", "directory of this program")
	flag.StringVar(&f.manifests, "pod-manifest-path", "", "directory of static pods")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, f, log); err != nil {
		log.Error("agent failed", slog.Any("err", err))
		os.Exit(1)
	}
}

func run(ctx context.Context, f flags, log *slog.Logger) error {
	cfg, err := kube.LoadKubeconfig(f.kubeconfig)
	if err != nil {
		return err
	}
	if err := kube.CheckClientCertificate(cfg, time.Now()); err != nil {
		log.Warn("client certificate not valid", slog.Any("err", err)) // pods on disk start without the API server
	}
	cfg.QPS, cfg.Burst = 100, 500
	config, err := kube.ConfigFor(cfg)
	if err != nil {
		return err
	}
	config.NodeName, config.Logger = f.nodeName, log
	k, err := kube.New(config)
	if err != nil {
		return err
	}
	opts, err := k.NodeOptions(kube.NodeConfig{}, filepath.Join(f.rootDir, "api"))
	if err != nil {
		return err
	}
	addresses := node.NewAddressDetector(node.AddressConfig{NodeName: f.nodeName})
	if _, err := addresses.Detect(); err != nil {
		log.Warn("node address not known", slog.Any("err", err)) // it is detected again for each report of the Node
	}
	opts = append(opts, agent.WithRootDir(f.rootDir), agent.WithLogger(log),
		agent.WithNode(node.Config{MaxPods: 110, Addresses: addresses.Detect, CurrentIPs: addresses.IPs}))
	if f.manifests != "" {
		opts = append(opts, agent.WithSource("file", podsource.File(f.manifests)))
	}
	if f.endpoint == "" {
		opts = append(opts, agent.WithSimulatedRuntime())
	} else {
		opts = append(opts, agent.WithRuntimeEndpoint(f.endpoint), agent.WithConfig(eviction.Config{}), agent.WithConfig(imagegc.Config{}))
	}
	a, err := agent.New(opts...)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
