package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
)

// Option sets one thing about an Agent. Sources, sinks, admitters and hooks add
// to those given before. Any other option that is given twice, or contradicts
// another, is an error of New.
type Option func(*settings) error

// settings are what the options have said.
type settings struct {
	given map[string]bool // options that can be given once

	nodeName          string
	node              NodeConfig
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
	hooks             Hooks
	timing            Timing
	pulls             cri.PullLimits
	imageAccess       cri.ImageAccess
	evict             *EvictionConfig
	imagePolicy       *imagegc.Policy
	imageKeep         []string
	containerGCPolicy containergc.Policy
	rotation          LogRotation
	adopt             []string // sources of pods without an owner

	// Worked out from the options.
	ephemeralRoot bool // the root folder lasts as long as Run
	events        *events.Dedup
	stores        []syncloop.PodStore
}

// NodeConfig is what the agent is told about the node it runs on. The zero value of
// each field leaves the matter open.
type NodeConfig struct {
	IPs         []string            // status.hostIPs, primary first
	Labels      map[string]string   // what node selectors and affinity are held against
	Allocatable corev1.ResourceList // what pods may ask for together; empty: no bound
	MaxPods     int                 // 0: no bound
	PodLogsDir  string              // container logs; default <root>/logs
	CgroupRoot  string              // cgroup below which pods are put; default the root cgroup
	// CgroupDriver is "cgroupfs" or "systemd", and must be the runtime's own.
	// Default: what the runtime says of itself or, as containerd 1.x, of its
	// configuration; cgroupfs for one that does not tell.
	CgroupDriver   string
	DisableCgroups bool // leave cgroups to the runtime
	// AllowedUnsafeSysctls are kernel parameters that pods may set besides the
	// kubelet's safe ones: names, or beginnings of names with * after them.
	AllowedUnsafeSysctls []string

	ResolvConf    string   // default /etc/resolv.conf
	ClusterDNS    []string // servers for dnsPolicy ClusterFirst
	ClusterDomain string   // cluster domain
}

// Timing are intervals that rarely need to be changed. Zero is the default.
type Timing struct {
	ResyncPeriod       time.Duration // between looks at a pod of which nothing is heard; 1 min
	HousekeepingPeriod time.Duration // between looks for what nobody wants any more, while anything happens; 2 s
	ImageGCPeriod      time.Duration // between looks at whether images have to go; 5 min
	SyncBackOff        time.Duration // after a turn of a pod that failed; 10 s
	Jitter             float64       // by which share of themselves Resync and Retry are lengthened at most; 0.5
}

// WithNodeName sets the node's name, which becomes part of the identity of
// static pods. Default: the host's name.
func WithNodeName(name string) Option {
	return func(s *settings) error {
		if name == "" {
			return errors.New("node name: empty")
		}
		return set(&s.nodeName, name, "node name")
	}
}

// WithNode sets what pods and checks are told about the node.
func WithNode(n NodeConfig) Option {
	return func(s *settings) error {
		var errs []error
		for _, dir := range []string{n.PodLogsDir, n.CgroupRoot} {
			if dir != "" && !filepath.IsAbs(dir) {
				errs = append(errs, fmt.Errorf("node: %q is not an absolute path", dir))
			}
		}
		if n.MaxPods < 0 {
			errs = append(errs, fmt.Errorf("node: MaxPods %d is negative", n.MaxPods))
		}
		s.node = n
		return errors.Join(append(errs, s.once("node"))...)
	}
}

// WithRootDir sets the agent's own folder: an absolute path. Run makes it, and
// locks it. It holds the id of the agent, owner-id, which marks all that it makes:
// without it the pods that run are somebody else's. Default: a temporary folder
// that lasts as long as Run, which suits pods that end with the process too.
func WithRootDir(dir string) Option {
	return func(s *settings) error {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("root dir %q: not an absolute path", dir)
		}
		return set(&s.rootDir, filepath.Clean(dir), "root dir")
	}
}

// WithSimulatedRuntime has pods run in a runtime inside the process that only acts
// as if: no process is started, and containers do what the annotations of their pods
// say (see embedded.ScriptPrefix). It needs neither root nor a daemon, and is for
// tests and for trying things out. It excludes WithRuntime and WithRuntimeEndpoint.
func WithSimulatedRuntime() Option {
	return func(s *settings) error {
		s.simulated = true
		return s.once("simulated runtime")
	}
}

// WithRuntime sets the container runtime. It excludes WithRuntimeEndpoint and
// WithSimulatedRuntime. A client of one's own, cri.New(...), brings its own
// configuration: its Recorder, Hooks, Node, Pulls and DialContext are not the agent's,
// and without a Recorder the events Pulling, Pulled, Created, Started and Killing are
// missing. cri.DetectNode finds what WithRuntimeEndpoint finds of the node by itself.
// One of the runtimes in package embedded, with processes of the host for instance, is
// handed over in this way.
//
// What rt can do besides its methods is found by runtime.Capability; an option that
// asks for something it cannot do is an error of New, and what else is off for want
// of a capability is logged once by Run.
//
// All pods that rt tells of are taken for the agent's own, and those that no source
// wants are ended. A runtime in which others have pods too must know whose is
// whose: it is told the agent's id if it is a runtime.OwnerSetter, as *cri.Client is.
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
// unix:///path. Images come from the same one unless a second endpoint is given.
// The agent connects when it runs, and hands its recorder, hooks and logger to its
// client.
func WithRuntimeEndpoint(endpoint string, image ...string) Option {
	return func(s *settings) error {
		if s.runtime != nil {
			return errors.New("runtime endpoint: a runtime was set too")
		}
		if endpoint == "" || len(image) > 1 {
			return fmt.Errorf("runtime endpoint: want one and perhaps one for images, got %q and %q", endpoint, image)
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

// WithSource adds a source of pods. Each name can be used once; it is told in
// the annotation kubernetes.io/config.source of its pods, and says which source
// a pod of a former process belongs to. It says nothing else: that is the source's
// matter. Pods of files and of HTTP get names that end in the node's and UIDs made
// of their content. The pods of all sources are static, which podsource.StaticSource
// explains, but for those of a source that says that they are not, as
// podsource.NotStatic has it say.
func WithSource(name string, src podsource.Source) Option {
	return func(s *settings) error {
		if name == "" || src == nil {
			return fmt.Errorf("source %q: needs a name and a source", name)
		}
		s.sources = append(s.sources, podsource.NamedSource{Name: name, Source: src})
		return nil
	}
}

// WithStatusSink adds a place where statuses go. A slow one holds up no other.
func WithStatusSink(sink status.Sink) Option {
	return func(s *settings) error {
		if sink == nil {
			return errors.New("status sink: nil")
		}
		s.sinks = append(s.sinks, sink)
		return nil
	}
}

// WithLogger sets where the agent logs. Default: nowhere.
func WithLogger(l *slog.Logger) Option {
	return func(s *settings) error {
		if l == nil {
			return errors.New("logger: nil")
		}
		s.logger = l
		return s.once("logger")
	}
}

// WithRecorder sets who takes Kubernetes events. Repeated ones are counted first.
func WithRecorder(r Recorder) Option {
	return func(s *settings) error {
		if r == nil {
			return errors.New("recorder: nil")
		}
		s.recorder = r
		return s.once("recorder")
	}
}

// WithAdmitter adds a check that every new pod must pass. It is called in the
// loop: it must be pure and fast. One that asks others belongs in
// WithSlowAdmitter. A static pod that it refuses is asked about again, with back-off
// and when pods change or end; any other stays Failed.
func WithAdmitter(a syncloop.Admitter) Option {
	return func(s *settings) error {
		if a == nil {
			return errors.New("admitter: nil")
		}
		s.admit = append(s.admit, a)
		return nil
	}
}

// WithSoftAdmitter adds a check that runs in the pod's own turn with a deadline
// of 10 s. A pod that it refuses waits, with phase Pending and reason Blocked; one
// that runs is stopped for it. When it is admitted it starts over, with all its
// containers, whatever its restart policy.
func WithSoftAdmitter(a podsync.SoftAdmitter) Option {
	return func(s *settings) error {
		if a == nil {
			return errors.New("slow admitter: nil")
		}
		s.softAdmitters = append(s.softAdmitters, a)
		return nil
	}
}

// WithBackOff sets how long containers that end wait before they are started
// again. Default: the kubelet's, 10 s doubling to 5 min.
func WithBackOff(b runtime.BackOff) Option {
	return func(s *settings) error {
		if b == nil {
			return errors.New("back-off: nil")
		}
		s.backOff = b
		return s.once("back-off")
	}
}

// ShutdownPolicy says what becomes of pods when Run ends.
type ShutdownPolicy struct {
	// Drain ends the containers of all pods, each pod's within its own grace period. The
	// pods stay wanted, and nothing is told as deleted: their logs, dead containers and
	// statuses are kept, with the phase that their containers call for, and the next
	// agent starts again what restarts by its policy. A pod that never restarts and was
	// cut short is Failed.
	Drain bool
	// DrainTimeout bounds the drain; 0 is as long as it takes.
	DrainTimeout time.Duration
}

// WithShutdownPolicy sets what becomes of pods when Run ends. Default: they run
// on, and the next agent adopts them.
func WithShutdownPolicy(p ShutdownPolicy) Option {
	return func(s *settings) error {
		if p.DrainTimeout < 0 {
			return fmt.Errorf("shutdown policy: Within %v is negative", p.DrainTimeout)
		}
		s.shutdown = p
		return s.once("shutdown policy")
	}
}

// WithTiming sets intervals.
func WithTiming(t Timing) Option {
	return func(s *settings) error {
		if t.ResyncPeriod < 0 || t.HousekeepingPeriod < 0 || t.ImageGCPeriod < 0 || t.SyncBackOff < 0 || t.Jitter < 0 {
			return fmt.Errorf("timing: a negative figure in %+v", t)
		}
		s.timing = t
		return s.once("timing")
	}
}

// once refuses an option that was given before.
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

// set refuses a second value.
func set(where *string, value, what string) error {
	if *where != "" && *where != value {
		return fmt.Errorf("%s: set to %q and to %q", what, *where, value)
	}
	*where = value
	return nil
}
