package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/status"
)

// run is the daemon: it blocks until ctx is done and returns nil after a clean
// end.
func run(ctx context.Context, f flags, out io.Writer) error {
	log := f.logger(out)
	opts, err := options(f, log)
	if err != nil {
		return err
	}
	reg, hooks, err := metrics()
	if err != nil {
		return err
	}
	a, err := agent.New(append(opts, agent.WithHooks(hooks))...)
	if err != nil {
		return err
	}
	if err := adjustOOMScore("/proc/self/oom_score_adj", f.oomScoreAdj); err != nil {
		log.Warn("oom score not adjusted", slog.Any("err", err))
	}
	if f.listen == "" {
		return a.Run(ctx)
	}
	srv, err := newServer(f.listen, a, reg, log)
	if err != nil {
		return err
	}
	return together(ctx, a.Run, srv.Run)
}

// adjustOOMScore has the kernel spare this process for as long as there is a pod to kill. Lowering the score needs CAP_SYS_RESOURCE;
// where the file is missing there is no such score.
func adjustOOMScore(file string, score int) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(score))
	return errors.Join(err, f.Close())
}

// together runs both until ctx is done or one of them ends. The second outlives
// the first, so that it can be asked while pods are drained.
func together(ctx context.Context, first, second func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	after, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	var wg sync.WaitGroup
	var err error
	wg.Go(func() {
		err = second(after)
		cancel()
	})
	errFirst := first(ctx)
	done()
	wg.Wait()
	return errors.Join(errFirst, err)
}

// options turns flags into the agent's options.
func options(f flags, log *slog.Logger) ([]agent.Option, error) {
	ip, err := f.ip()
	if err != nil {
		return nil, err
	}
	opts := []agent.Option{
		agent.WithNodeName(f.nodeName),
		agent.WithRootDir(f.rootDir),
		agent.WithLogger(log),
		agent.WithRecorder(fakeRecorder{log}),
		agent.WithShutdownPolicy(agent.ShutdownPolicy{Drain: f.drain}),
		agent.WithTiming(agent.Timing{ResyncPeriod: f.syncFrequency}),
		agent.WithBackOff(runtime.ExponentialBackOff{Max: f.maxRestartPeriod}),
		agent.WithImageVerification(cri.ImageVerification(f.imageVerification), split(f.imageAllowlist)...),
		agent.WithNode(agent.NodeConfig{
			IPs: []string{ip}, Labels: f.labels(), MaxPods: f.maxPods, PodLogsDir: f.podLogsDir, CgroupRoot: f.cgroupRoot, CgroupDriver: f.cgroupDriver,
			ResolvConf: f.resolvConf, ClusterDNS: split(f.clusterDNS), ClusterDomain: f.clusterDomain, AllowedUnsafeSysctls: split(f.unsafeSysctls),
		}),
	}
	room, err := f.reclaim.options()
	if err != nil {
		return nil, err
	}
	opts = append(opts, room...)
	if f.manifests != "" {
		opts = append(opts, agent.WithSource("file", podsource.File(f.manifests, podsource.FileRescan(f.fileCheck), podsource.FileLogger(log))))
	}
	if f.manifestURL != "" {
		src, err := podsource.HTTP(podsource.HTTPConfig{URL: f.manifestURL, Period: f.httpCheck})
		if err != nil {
			return nil, fmt.Errorf("-manifest-url: %w", err)
		}
		// What the server said last is at hand when the node starts without it.
		opts = append(opts, agent.WithSource("http", podsource.Cached(src, filepath.Join(f.rootDir, "sources", "http"))))
	}
	if f.runtimeEndpoint == "" {
		log.Warn("pods are simulated, no container runs; give -runtime-endpoint for real ones")
		opts = append(opts, agent.WithSimulatedRuntime())
	} else {
		images := []string{}
		if f.imageEndpoint != "" {
			images = append(images, f.imageEndpoint)
		}
		opts = append(opts, agent.WithRuntimeEndpoint(f.runtimeEndpoint, images...))
	}
	if f.statusDir != "" {
		sink, err := status.NewFileSink(f.statusDir)
		if err != nil {
			return nil, fmt.Errorf("-status-dir: %w", err)
		}
		opts = append(opts, agent.WithStatusSink(sink))
	}
	return opts, nil
}

// ip is this node's address: the flag's, or the first one that is not loopback.
func (f *flags) ip() (string, error) {
	if f.nodeIP != "" {
		return f.nodeIP, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("find this node's address, or give -node-ip: %w", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String(), nil
		}
	}
	return "127.0.0.1", nil
}

// object names what an event is about: a pod by namespace and name, and others, such as the node, by their kind.
func object(ref corev1.ObjectReference) slog.Attr {
	if ref.Kind == "Pod" {
		return slog.String("pod", ref.Namespace+"/"+ref.Name)
	}
	return slog.String(strings.ToLower(ref.Kind), ref.Name)
}

// fakeRecorder logs Kubernetes events.
type fakeRecorder struct{ log *slog.Logger }

func (r fakeRecorder) Record(e *corev1.Event) {
	level := slog.LevelInfo
	if e.Type == corev1.EventTypeWarning {
		level = slog.LevelWarn
	}
	r.log.LogAttrs(context.Background(), level, "event",
		object(e.InvolvedObject),
		slog.String("reason", e.Reason), slog.String("message", e.Message), slog.Int("count", int(e.Count)),
		slog.Time("since", e.FirstTimestamp.Truncate(time.Second)))
}
