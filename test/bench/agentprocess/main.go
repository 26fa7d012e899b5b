// Command agentprocess is an agent in a process of its own, so that benchmarks can measure what it uses, and compare it with a
// kubelet that reads the same manifests. With -client it is only an empty client of the runtime, the least that any agent
// uses: a connection and an event stream.
//
// It prints a line for the first status in which all containers of a pod run, and one when nothing of the pod is left: a word, the
// name of the pod, and the time in nanoseconds. SIGTERM ends it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/cri"
)

func main() {
	endpoint := flag.String("endpoint", "", "CRI socket, as unix:///path")
	rootDir := flag.String("root-dir", "", "directory of the agent")
	manifests := flag.String("manifests", "", "directory of manifests")
	cgroupRoot := flag.String("cgroup-root", "", "cgroup of the pods; empty: no cgroups")
	maxPods := flag.Int("max-pods", 110, "pods at a time")
	client := flag.Bool("client", false, "be a client that does nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	run := runAgent
	if *client {
		run = runClient
	}
	if err := run(ctx, *endpoint, *rootDir, *manifests, *cgroupRoot, *maxPods); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runAgent(ctx context.Context, endpoint, rootDir, manifests, cgroupRoot string, maxPods int) error {
	a, err := agent.New(
		agent.WithNodeName("bench"), agent.WithRootDir(rootDir), agent.WithRuntimeEndpoint(endpoint),
		agent.WithNode(node.Config{CgroupRoot: cgroupRoot, DisableCgroups: cgroupRoot == "", MaxPods: maxPods}),
		agent.WithSource("file", podsource.File(manifests)), agent.WithStatusSink(&sink{running: map[string]bool{}}),
		agent.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// runClient opens what every agent has open.
func runClient(ctx context.Context, endpoint, _, _, _ string, _ int) error {
	conn, err := cri.Dial(endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	rt := v1.NewRuntimeServiceClient(conn)
	if _, err := rt.Version(ctx, &v1.VersionRequest{}); err != nil {
		return err
	}
	if _, err := rt.GetContainerEvents(ctx, &v1.GetEventsRequest{}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// sink prints when pods run and when they are deleted.
type sink struct {
	mu      sync.Mutex
	running map[string]bool
}

// SetStatus implements status.Sink.
func (s *sink) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	isRunning := st.Phase == corev1.PodRunning &&
		!slices.ContainsFunc(st.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running == nil })
	s.note("running", pod.Name, isRunning)
	return nil
}

// DeleteStatus implements status.Deleter.
func (s *sink) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	s.note("deleted", pod.Name, false)
	return nil
}

func (s *sink) note(what, pod string, isRunning bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what == "running" && (!isRunning || s.running[pod]) {
		return
	}
	if isRunning {
		s.running[pod] = true
	} else {
		delete(s.running, pod)
	}
	fmt.Println(what, pod, time.Now().UnixNano())
}
