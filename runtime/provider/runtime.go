package provider

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Config describes a Runtime. Provider is required.
type Config struct {
	Provider Provider
	Name     string        // of the runtime, in the node's status. Default: "provider"
	Version  string        // Default: none
	Timeout  time.Duration // of a call that lists or changes pods; of DeletePod, after the grace period. Default: 2m
	Logger   *slog.Logger  // Default: discard
}

// Runtime is a Provider as an agent.Runtime. It has the capabilities runtime.PodSyncer,
// PodLogReader, Streamer and, if the provider is a StatsReporter, ContainerStatsReporter. Its
// methods can be called concurrently.
type Runtime struct {
	cfg   Config
	calls calls
	list  lister

	mu      sync.Mutex // guards the fields below; no method of the provider runs under it
	pods    map[types.UID]*podEntry
	ends    uint64          // notifications so far that a pod has ended
	onEvent func(types.UID) // of Watch; nil: nothing watches
	streams *streamServer   // nil: not needed yet
	closed  bool
}

// podEntry is what is known of one pod. It is removed by Remove, or when a pod that this
// process has not created is gone.
type podEntry struct {
	uid             types.UID
	namespace, name string
	created         bool          // CreatePod was called by this process
	sent            *corev1.Pod   // what the provider was last given; nil: an earlier process did
	last            *corev1.Pod   // what it last reported; nil: it does not have the pod
	endedAt         uint64        // Runtime.ends at the notification of its end; 0: there was none
	expectUntil     time.Time     // until then the provider may not report the pod yet; zero: it has
	changed         chan struct{} // closed and replaced at each notification
}

var (
	_ runtime.PodSyncer    = (*Runtime)(nil)
	_ runtime.PodLogReader = (*Runtime)(nil)
	_ runtime.Streamer     = (*Runtime)(nil)
)

// New returns a Runtime. It does no I/O.
func New(cfg Config) (*Runtime, error) {
	var errs []error
	if cfg.Provider == nil {
		errs = append(errs, errors.New("provider: Config.Provider required"))
	}
	if cfg.Timeout < 0 {
		errs = append(errs, errors.New("provider: Config.Timeout must not be negative"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cfg.Name = cmp.Or(cfg.Name, "provider")
	cfg.Timeout = cmp.Or(cfg.Timeout, 2*time.Minute)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{cfg: cfg, pods: map[types.UID]*podEntry{}}
	r.calls.log, r.list.fetch = cfg.Logger, r.fetch
	return r, nil
}

// Close ends the streams of exec, attach and port-forward. It does not end pods.
func (r *Runtime) Close() error {
	r.mu.Lock()
	r.closed = true
	streams := r.streams
	r.mu.Unlock()
	if streams == nil {
		return nil
	}
	return streams.close()
}

// Status implements agent.Runtime. A provider that is not a Pinger is always ready.
func (r *Runtime) Status(ctx context.Context) (runtime.Status, error) {
	if p, ok := r.cfg.Provider.(Pinger); ok {
		ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
		defer cancel()
		_, err := do(ctx, &r.calls, "ping", "ping the provider", func(ctx context.Context) (struct{}, error) { return struct{}{}, p.Ping(ctx) })
		if err != nil {
			return runtime.Status{}, err
		}
	}
	return runtime.Status{Name: r.cfg.Name, Version: r.cfg.Version, RuntimeReady: true, NetworkReady: true}, nil
}

// Unwrap returns what else the provider can do. See runtime.Capability.
func (r *Runtime) Unwrap() any {
	if s, ok := r.cfg.Provider.(StatsReporter); ok {
		return statsReporter{r, s}
	}
	return nil
}

// statsReporter is the capability runtime.ContainerStatsReporter.
type statsReporter struct {
	r        *Runtime
	provider StatsReporter
}

// ContainerStats implements runtime.ContainerStatsReporter.
func (s statsReporter) ContainerStats(ctx context.Context) ([]runtime.ContainerUsage, error) {
	ctx, cancel := context.WithTimeout(ctx, s.r.cfg.Timeout)
	defer cancel()
	return do(ctx, &s.r.calls, "stats", "measure containers", s.provider.ContainerStats)
}
