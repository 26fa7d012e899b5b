// Command agentprocess is an agent in a process of its own, so that benchmarks can measure what it uses, and compare it with a
// kubelet that reads the same manifests. With -page-out it pages out its program after the start. With -client it is only an
// empty client of the runtime, the least that any agent uses: a connection and an event stream. SIGTERM ends it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/pageout"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/status"
)

func main() {
	endpoint := flag.String("endpoint", "", "CRI socket, as unix:///path")
	rootDir := flag.String("root-dir", "", "directory of the agent")
	manifests := flag.String("manifests", "", "directory of manifests")
	cgroupRoot := flag.String("cgroup-root", "", "cgroup of the pods; empty: no cgroups")
	maxPods := flag.Int("max-pods", 110, "pods at a time")
	pageOut := flag.Bool("page-out", false, "page out the program after the start")
	client := flag.Bool("client", false, "be a client that does nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt) //nolint:forbidigo // the program is its own caller
	defer stop()
	run := func() error { return runAgent(ctx, *endpoint, *rootDir, *manifests, *cgroupRoot, *maxPods, *pageOut) }
	if *client {
		run = func() error { return runClient(ctx, *endpoint) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runAgent(ctx context.Context, endpoint, rootDir, manifests, cgroupRoot string, maxPods int, pageOut bool) error {
	opts := []agent.Option{
		agent.WithNodeName("bench"), agent.WithRootDir(rootDir), agent.WithRuntimeEndpoint(endpoint),
		agent.WithNode(node.Config{CgroupRoot: cgroupRoot, DisableCgroups: cgroupRoot == "", MaxPods: maxPods}),
		agent.WithSource("file", podsource.File(manifests)), agent.WithStatusSink(status.SinkFunc(discard)),
		agent.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}
	if pageOut {
		opts = append(opts, agent.WithRunner("pageout", func(c *agent.Components) (agent.Runner, error) {
			return pageout.New(pageout.Config{Logger: c.Logger})
		}))
	}
	a, err := agent.New(opts...)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// discard is a status sink: an agent without one sends nothing.
func discard(context.Context, *corev1.Pod, corev1.PodStatus) error { return nil }

// runClient opens what every agent has open.
func runClient(ctx context.Context, endpoint string) error {
	conn, err := cri.Dial(endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client, err := cri.New(conn, cri.Config{})
	if err != nil {
		return err
	}
	if err := client.Watch(ctx, func(types.UID) {}); err != nil && ctx.Err() == nil && !errors.Is(err, runtime.ErrUnsupported) {
		return err
	}
	<-ctx.Done()
	return nil
}
