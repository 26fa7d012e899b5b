package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/pageout"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// run is the daemon. It blocks until ctx is done and returns nil after a clean stop.
func run(ctx context.Context, f flags, out io.Writer) error {
	log := f.logger(out)
	api := newKubeAPI(&f, log)
	if err := api.check(); err != nil {
		return asUsageError(err)
	}
	plugins, accounts := pluginDirs{}, &lateAccounts{}
	opts, err := options(&f, log, api, plugins, accounts)
	if err != nil {
		return asUsageError(err)
	}
	cluster, err := f.cluster(ctx, plugins, accounts, log)
	switch {
	case err != nil && ctx.Err() != nil: // it was stopped while it waited for a certificate
		return nil
	case err != nil:
		return err
	}
	if cluster != nil {
		opts = append(opts, cluster.opts...)
	}
	claims, err := f.dra.options(&f, cluster, plugins, log)
	if err != nil {
		return err
	}
	registries, err := plugins.options(log)
	if err != nil {
		return err
	}
	opts = slices.Concat(opts, claims, registries)
	opts = append(opts, api.options()...)
	page, err := f.debug.options(f.nodeName)
	if err != nil {
		return err
	}
	opts = append(opts, page...)
	socket := &socketServer{rootDir: f.rootDir, log: log}
	a, err := agent.New(append(opts, agent.WithHooks(f.metrics.hooks()),
		agent.WithRunner("socket", func(*agent.Components) (agent.Runner, error) { return socket, nil }))...)
	if err != nil {
		return asUsageError(err)
	}
	base, err := serverConfig(&f, a, f.metrics, log)
	if err != nil {
		return err
	}
	if api != nil {
		api.agent, api.server = a, base
	}
	if err := adjustOOMScore(oomScoreFile, f.oomScoreAdj); err != nil {
		log.Warn("oom score not adjusted", slog.Any("err", err))
	}
	servers, err := newServers(&f, cluster, a, base, socket)
	if err != nil {
		return asUsageError(err)
	}
	d, err := newDaemon(&f, a, log)
	if err != nil {
		return err
	}
	defer d.start(ctx)()
	if len(servers) == 0 {
		return a.Run(ctx)
	}
	return together(ctx, a.Run, func(ctx context.Context) error { return serve(ctx, servers) })
}

const oomScoreFile = "/proc/self/oom_score_adj"

// adjustOOMScore makes the kernel kill pods before this process. Lowering the score needs CAP_SYS_RESOURCE; a system without the
// file has no such score.
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

// together runs both until ctx is done or one of them ends. The second ends after
// the first, so that it serves while pods are drained.
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

// options converts flags to options of the agent.
func options(f *flags, log *slog.Logger, api *kubeAPI, plugins pluginDirs, accounts *lateAccounts) ([]agent.Option, error) {
	capacity, err := f.capacity()
	if err != nil {
		return nil, err
	}
	s, err := f.config.effective.Settings(capacity)
	if err != nil {
		return nil, err
	}
	f.config.notices(log)
	log.Info("node resources detected", slog.Any("allocatable", nodeResources(s.Resources)))
	credentials, err := f.credentials(accounts, log)
	if err != nil {
		return nil, err
	}
	s.CRI.Credentials = credentials
	shutdown, err := f.shutdown.options(f, &s, log)
	if err != nil {
		return nil, err
	}
	described, err := f.describe(s.Node, log)
	if err != nil {
		return nil, err
	}
	opts := []agent.Option{
		agent.WithRootDir(f.rootDir),
		agent.WithLogger(log),
		agent.WithConfig(s.PodWorkers),
		agent.WithConfig(s.PodSync),
		agent.WithConfig(s.CRI),
		agent.WithNode(described),
	}
	opts = append(opts, shutdown...)
	opts = append(opts, f.oomOptions(log)...)
	if f.pageOut {
		opts = append(opts, agent.WithRunner("pageout", func(c *agent.Components) (agent.Runner, error) {
			return pageout.New(pageout.Config{Logger: c.Logger})
		}))
	}
	if f.drain {
		opts = append(opts, agent.WithConfig(podworkers.DrainConfig{}))
	}
	if f.kube.kubeconfig == "" { // a cluster has the name and the events of its nodes
		opts = append(opts, agent.WithNodeName(f.nodeName), agent.WithRecorder(api.recorder(logRecorder{log})))
	}
	opts = append(opts, f.reclaim.options(&s)...)
	resources, err := f.resourceOptions(plugins, log)
	if err != nil {
		return nil, err
	}
	opts = append(opts, resources...)
	opts = append(opts, f.podsAPI.options(f.config.effective.PodsAPI(), f.metrics.all, log)...)
	if f.kube.kubeconfig == "" {
		volumes, _, err := f.csi.options(f, nil, nil, plugins, log)
		if err != nil {
			return nil, err
		}
		opts = append(opts, volumes...)
	}
	if f.manifests != "" {
		opts = append(opts, agent.WithSource("file", podsource.File(f.manifests, podsource.FileRescan(f.fileCheck), podsource.FileLogger(log))))
	}
	if f.manifestURL != "" {
		src, err := podsource.HTTP(podsource.HTTPConfig{URL: f.manifestURL, Period: f.httpCheck, Header: f.header()})
		if err != nil {
			return nil, fmt.Errorf("-manifest-url: %w", err)
		}
		// The last response is used when the node starts without the server.
		opts = append(opts, agent.WithSource("http", podsource.Cached(src, filepath.Join(f.rootDir, "sources", "http"))))
	}
	if f.runtimeEndpoint == "" {
		opts = append(opts, agent.WithSimulatedRuntime())
	} else {
		images := []string{}
		if f.imageEndpoint != "" {
			images = append(images, f.imageEndpoint)
		}
		opts = append(opts, agent.WithRuntimeEndpoint(f.runtimeEndpoint, images...),
			agent.WithConfig(admission.Config{NoAppArmor: !admission.HasAppArmor(os.DirFS("/"))}))
	}
	if f.statusDir != "" {
		sink, err := statusDir(f.statusDir, log)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sink...)
	}
	return opts, nil
}

// object returns the subject of an event: a pod by namespace and name, others by their kind.
func object(ref corev1.ObjectReference) slog.Attr {
	if ref.Kind == "Pod" {
		return slog.String("pod", ref.Namespace+"/"+ref.Name)
	}
	return slog.String(strings.ToLower(ref.Kind), ref.Name)
}

// logRecorder logs Kubernetes events: warnings, and at Debug those that the log of the agent
// tells too, as it does of all normal ones, of back-offs and of errors of sources.
type logRecorder struct{ log *slog.Logger }

// isLogged reports whether the agent logs what the warnings of a reason are about.
func isLogged(reason string) bool {
	return slices.Contains([]string{"BackOff", podsource.ReasonInvalid, podsource.ReasonUnavailable, podsource.ReasonDuplicate}, reason)
}

func (r logRecorder) Record(e *corev1.Event) {
	level := slog.LevelDebug
	if e.Type == corev1.EventTypeWarning && !isLogged(e.Reason) {
		level = slog.LevelWarn
	}
	r.log.LogAttrs(context.Background(), level, "event",
		object(e.InvolvedObject),
		slog.String("reason", e.Reason), slog.String("message", e.Message), slog.Int("count", int(e.Count)),
		slog.Time("since", e.FirstTimestamp.Truncate(time.Second)))
}
