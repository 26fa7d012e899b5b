package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
)

// Option configures an Agent. Sources, sinks, admitters, objects and hooks add to
// those given before. Any other option that is given twice, or contradicts
// another, is an error of New.
type Option func(*settings) error

// settings are the values of the options.
type settings struct {
	given map[string]bool // options that can be given once

	nodeName          string
	node              NodeConfig
	criNode           *cri.Node
	objects           []podspec.Objects
	rootDir           string
	runtime           Runtime
	endpoint, image   string
	simulated         bool
	sources           []podsource.NamedSource
	sinks             []status.Sink
	logger            *slog.Logger
	recorder          Recorder
	backOff           runtime.BackOff
	admit             []syncloop.Admitter
	softAdmitters     []podsync.SoftAdmitter
	shutdown          ShutdownPolicy
	observers         []Hooks
	hooks             Hooks // of all observers
	timing            Timing
	pulls             cri.PullLimits
	imageAccess       cri.ImageAccess
	evict             *eviction.Config
	imagePolicy       *imagegc.Policy
	imageKeep         []string
	containerGCPolicy containergc.Policy
	rotation          LogRotation
	adopt             []string // sources of pods without an owner

	// Derived from the options.
	ephemeralRoot bool // the root directory lasts as long as Run
	events        *events.Dedup
	stores        []syncloop.PodStore
}

// Timing are intervals that rarely need to be changed. Zero is the default.
type Timing struct {
	ResyncPeriod       time.Duration // between syncs of a pod to which nothing happens. Default: 1m
	HousekeepingPeriod time.Duration // between searches for orphans while the node is active. Default: 2s
	ImageGCPeriod      time.Duration // between image garbage collections. Default: 5m
	SyncBackOff        time.Duration // after a failed sync of a pod. Default: 10s
	Jitter             float64       // largest random increase of ResyncPeriod and SyncBackOff, as a share of them. Default: 0.5
}

// WithNodeName sets the node's name, which is part of the name and UID of static
// pods. Default: the host's name.
func WithNodeName(name string) Option {
	return func(s *settings) error {
		if name == "" {
			return errors.New("node name: empty")
		}
		return set(&s.nodeName, name, "node name")
	}
}

// WithRootDir sets the agent's own directory, an absolute path. Run creates and
// locks it. The file owner-id in it has the id that marks everything the agent
// creates in the runtime: if it is lost, running pods belong to no agent.
// Default: a temporary directory that is removed when Run returns, for pods that
// end with the process.
func WithRootDir(dir string) Option {
	return func(s *settings) error {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("root dir %q: not an absolute path", dir)
		}
		return set(&s.rootDir, filepath.Clean(dir), "root dir")
	}
}

// WithSimulatedRuntime runs pods in a runtime inside the process that simulates
// them: no process is started, and containers behave as the annotations of their
// pods say (see simulated.ScriptPrefix). It needs neither root nor a daemon, and is
// for tests and trials. It excludes WithRuntime and WithRuntimeEndpoint.
func WithSimulatedRuntime() Option {
	return func(s *settings) error {
		s.simulated = true
		return s.once("simulated runtime")
	}
}

// WithRuntime sets the container runtime. It excludes WithRuntimeEndpoint and
// WithSimulatedRuntime. A client from cri.New keeps its own configuration: it does
// not get the agent's recorder, hooks, pull limits and node settings, and without
// cri.Config.Recorder the events Pulling, Pulled, Created, Started and Killing are
// missing. cri.DetectNode finds the settings that WithRuntimeEndpoint detects.
// The runtimes of package embedded, host processes for instance, are set with this
// option.
//
// runtime.Capability finds what rt can do besides its methods. An option that needs
// a missing capability is an error of New; Run logs once what else is unavailable.
//
// The agent takes all pods that rt lists for its own and terminates those that no
// source contains. A runtime that has pods of others too must distinguish them: if
// it is a runtime.OwnerSetter, as *cri.Client is, it is given the agent's id.
func WithRuntime(rt Runtime) Option {
	return func(s *settings) error {
		if rt == nil {
			return errors.New("runtime: nil")
		}
		if s.runtime != nil || s.endpoint != "" {
			return errors.New("runtime: set twice")
		}
		s.runtime = rt
		return nil
	}
}

// WithRuntimeEndpoint sets the CRI socket of the container runtime, as
// unix:///path. An optional second socket is that of the image service. Run
// connects; the client gets the agent's recorder, hooks and logger.
func WithRuntimeEndpoint(endpoint string, image ...string) Option {
	return func(s *settings) error {
		if s.runtime != nil {
			return errors.New("runtime endpoint: conflicts with WithRuntime")
		}
		if endpoint == "" || len(image) > 1 {
			return fmt.Errorf("runtime endpoint: want one socket and at most one image socket, got %q and %q", endpoint, image)
		}
		errs := []error{set(&s.endpoint, endpoint, "runtime endpoint")}
		for _, e := range append([]string{endpoint}, image...) {
			if err := cri.CheckEndpoint(e); err != nil {
				errs = append(errs, fmt.Errorf("runtime endpoint: %w", err))
			}
		}
		if len(image) == 1 {
			errs = append(errs, set(&s.image, image[0], "image endpoint"))
		}
		return errors.Join(errs...)
	}
}

// WithSource adds a source of pods. Its name must be unique; it is the value of the
// annotation kubernetes.io/config.source of its pods, and assigns pods of an earlier
// process to their source. Pods of files and of HTTP get names that end in the
// node's and UIDs derived from their content. The pods of a source are static (see
// podsource.StaticSource) unless the source reports otherwise, as podsource.NotStatic
// does.
func WithSource(name string, src podsource.Source) Option {
	return func(s *settings) error {
		if name == "" || src == nil {
			return fmt.Errorf("source %q: name and source required", name)
		}
		s.sources = append(s.sources, podsource.NamedSource{Name: name, Source: src})
		return nil
	}
}

// WithStatusSink adds a sink to which pod statuses are sent. A slow sink does not
// delay others.
func WithStatusSink(sink status.Sink) Option {
	return func(s *settings) error {
		if sink == nil {
			return errors.New("status sink: nil")
		}
		s.sinks = append(s.sinks, sink)
		return nil
	}
}

// WithLogger sets the agent's logger. Default: nothing is logged.
func WithLogger(l *slog.Logger) Option {
	return func(s *settings) error {
		if l == nil {
			return errors.New("logger: nil")
		}
		s.logger = l
		return s.once("logger")
	}
}

// WithRecorder sets the recorder of Kubernetes events. Repeated events are
// aggregated before they reach it.
func WithRecorder(r Recorder) Option {
	return func(s *settings) error {
		if r == nil {
			return errors.New("recorder: nil")
		}
		s.recorder = r
		return s.once("recorder")
	}
}

// WithAdmitter adds a check that every new pod must pass. It is called from the
// sync loop and must be pure and fast; a check that does I/O belongs in
// WithSoftAdmitter. A rejected static pod is checked again, with back-off and when
// other pods change or end; any other pod stays Failed.
func WithAdmitter(a syncloop.Admitter) Option {
	return func(s *settings) error {
		if a == nil {
			return errors.New("admitter: nil")
		}
		s.admit = append(s.admit, a)
		return nil
	}
}

// WithSoftAdmitter adds a check that runs in the pod's worker with a deadline of
// 10 s. A rejected pod waits with phase Pending and reason Blocked; a running pod
// is stopped first. Once admitted, all its containers start again, whatever its
// restart policy.
func WithSoftAdmitter(a podsync.SoftAdmitter) Option {
	return func(s *settings) error {
		if a == nil {
			return errors.New("soft admitter: nil")
		}
		s.softAdmitters = append(s.softAdmitters, a)
		return nil
	}
}

// WithBackOff sets the delay before an exited container is restarted. Default: the
// kubelet's, 10 s doubling to 5 min.
func WithBackOff(b runtime.BackOff) Option {
	return func(s *settings) error {
		if b == nil {
			return errors.New("back-off: nil")
		}
		s.backOff = b
		return s.once("back-off")
	}
}

// ShutdownPolicy decides what happens to pods when Run ends.
type ShutdownPolicy struct {
	// Drain terminates the containers of all pods, each within its own grace period.
	// The pods stay desired and are not reported as deleted: their logs, exited
	// containers and statuses are kept, and the next agent restarts those whose
	// restart policy says so. An interrupted pod that never restarts is Failed.
	Drain bool
	// DrainTimeout bounds the drain. Default: 0, unbounded.
	DrainTimeout time.Duration
}

// WithShutdownPolicy sets what happens to pods when Run ends. Default: they keep
// running, and the next agent adopts them.
func WithShutdownPolicy(p ShutdownPolicy) Option {
	return func(s *settings) error {
		if p.DrainTimeout < 0 {
			return fmt.Errorf("shutdown policy: DrainTimeout %v is negative", p.DrainTimeout)
		}
		s.shutdown = p
		return s.once("shutdown policy")
	}
}

// WithTiming sets intervals.
func WithTiming(t Timing) Option {
	return func(s *settings) error {
		if t.ResyncPeriod < 0 || t.HousekeepingPeriod < 0 || t.ImageGCPeriod < 0 || t.SyncBackOff < 0 || t.Jitter < 0 {
			return fmt.Errorf("timing: negative value in %+v", t)
		}
		s.timing = t
		return s.once("timing")
	}
}

// once returns an error for an option that was given before.
func (s *settings) once(what string) error {
	if s.given[what] {
		return fmt.Errorf("%s: set twice", what)
	}
	if s.given == nil {
		s.given = map[string]bool{}
	}
	s.given[what] = true
	return nil
}

// set stores a value, or returns an error if another one is stored.
func set(where *string, value, what string) error {
	if *where != "" && *where != value {
		return fmt.Errorf("%s: set to %q and to %q", what, *where, value)
	}
	*where = value
	return nil
}
