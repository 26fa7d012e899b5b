// Command provider runs pods that are not containers: each is a timer. The provider is timers.go.
//
//	provider -manifests DIR                    # the pods of a directory
//	provider -kubeconfig FILE -node-name NAME  # a node of a cluster
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/provider"
	"github.com/sublet-dev/agent/status"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file that says how to reach the API server")
	name := flag.String("node-name", "timers", "name of the Node")
	manifests := flag.String("manifests", "", "directory of pods")
	root := flag.String("root-dir", "/tmp/provider-example", "directory of this program")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *kubeconfig, *name, *manifests, *root); err != nil {
		fmt.Fprintln(os.Stderr, "provider:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, name, manifests, root string) error {
	rt, err := provider.New(provider.Config{Name: "timers", Provider: &timers{pods: map[string]*corev1.Pod{}}})
	if err != nil {
		return err
	}
	defer rt.Close()
	opts := []agent.Option{agent.WithRuntime(rt), agent.WithRootDir(root), agent.WithNode(node.Config{MaxPods: 1000, DisableCgroups: true})}
	if manifests != "" {
		opts = append(opts, agent.WithNodeName(name), agent.WithSource("file", podsource.File(manifests)), agent.WithStatusSink(status.SinkFunc(printStatus)))
	}
	if kubeconfig != "" {
		joined, err := cluster(kubeconfig, name, root)
		if err != nil {
			return err
		}
		opts = append(opts, joined...)
	} else if manifests == "" {
		return fmt.Errorf("no pods: give -manifests or -kubeconfig")
	}
	a, err := agent.New(append(opts, agent.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))...)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

func printStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	_, err := fmt.Println(pod.Name, st.Phase, st.Reason, st.Message)
	return err
}

// cluster makes the agent a node of a cluster.
func cluster(kubeconfig, name, root string) ([]agent.Option, error) {
	cfg, err := kube.LoadKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	k, err := kube.New(kube.Config{Client: kubernetes.NewForConfigOrDie(cfg), NodeName: name})
	if err != nil {
		return nil, err
	}
	return k.NodeOptions(kube.NodeConfig{}, root+"/api")
}
