package agent

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/node"
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
	given        map[string]bool // options that can be given once
	constructors map[string]any  // Constructor[T] by the name of the component

	nodeName          string
	node              node.Config
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
	runners           []namedRunner
	nodeLabels        func() map[string]string

	// Derived from the options.
	ephemeralRoot bool // the root directory lasts as long as Run
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

// WithNode describes the node.
func WithNode(n node.Config) Option {
	return func(s *settings) error {
		n.Taints, n.PodsCgroupLimits = slices.Clone(n.Taints), n.PodsCgroupLimits.DeepCopy()
		s.node = n
		return errors.Join(n.Check(), s.once("node"))
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

// WithEvictionConfig evicts pods when the node runs short of memory, disk or process ids, and
// pods that exceed their limits on local storage. New pods are rejected meanwhile. The
// zero Config has the kubelet's defaults. Default: no evictions.
//
// Pods, NodeName, Recorder and Logger are the agent's and must not be set. Reclaimers of
// c are called before the agent's own. Without c.Usage the agent measures the machine or
// node.Config.NodeCgroup, with the notifiers of the kernel before those of c.
func WithEvictionConfig(c eviction.Config) Option {
	return func(s *settings) error {
		err := c.Check()
		if c.Pods != nil || c.NodeName != "" || c.Recorder != nil || c.Logger != nil {
			err = errors.Join(err, errors.New("eviction: Pods, NodeName, Recorder and Logger are the agent's; remove them"))
		}
		cfg := c
		cfg.Thresholds, cfg.Reclaimers, cfg.Notifiers = slices.Clone(c.Thresholds), slices.Clone(c.Reclaimers), slices.Clone(c.Notifiers)
		s.evict = &cfg
		return errors.Join(err, s.once("eviction"))
	}
}

// WithImageGCPolicy removes images that no pod needs. keep names images that are never
// removed, such as that of the sandboxes if the runtime neither pins nor reports it.
// Default: no image is removed, because other clients of the runtime may use them.
func WithImageGCPolicy(p imagegc.Policy, keep ...string) Option {
	return func(s *settings) error {
		if err := p.Check(); err != nil {
			return err
		}
		s.imagePolicy, s.imageKeep = &p, keep
		return s.once("image collection")
	}
}

// WithContainerGCPolicy sets how many exited containers are kept. Default: the last one of
// each name, as long as its pod is desired.
func WithContainerGCPolicy(p containergc.Policy) Option {
	return func(s *settings) error {
		if err := p.Check(); err != nil {
			return fmt.Errorf("container collection: %w", err)
		}
		s.containerGCPolicy = p
		return s.once("container collection")
	}
}

// LogRotation bounds the logs of running containers.
type LogRotation struct {
	MaxSize  int64 // bytes at which a log is rotated. Default: 10 MiB; negative: never
	MaxFiles int   // files of one container, the current one included, at least 2. Default: 5
}

// WithLogRotation bounds the logs of running containers. New returns an error if the
// runtime cannot reopen logs.
func WithLogRotation(r LogRotation) Option {
	return func(s *settings) error {
		if r.MaxFiles != 0 && r.MaxFiles < 2 {
			return fmt.Errorf("log rotation: MaxFiles %d is less than 2", r.MaxFiles)
		}
		s.rotation = r
		return s.once("log rotation")
	}
}

// WithImagePulls bounds the image pulls of the client that WithRuntimeEndpoint makes.
func WithImagePulls(p cri.PullLimits) Option {
	return func(s *settings) error {
		if p.MaxParallel < 0 || p.Burst < 0 {
			return fmt.Errorf("image pulls: negative MaxParallel or Burst in %+v", p)
		}
		s.pulls = p
		return s.once("image pulls")
	}
}

// WithImageVerification sets for which images that are already on the node a pod
// needs the credentials to pull them. It is for the client that WithRuntimeEndpoint
// makes. Default: cri.NeverVerifyPreloadedImages, which verifies images that this
// agent pulled; they are recorded in its root directory. The allowlist is for
// cri.NeverVerifyAllowlistedImages.
func WithImageVerification(policy cri.ImageVerification, allowlist ...string) Option {
	return func(s *settings) error {
		s.imageAccess = cri.ImageAccess{Policy: policy, Allowlist: slices.Clone(allowlist)}
		if err := s.imageAccess.Check(); err != nil {
			return fmt.Errorf("image verification: %w", err)
		}
		return s.once("image verification")
	}
}

// WithAdoption has the agent take over pods that bear no owner's id, as those of a
// kubelet, if they come from one of these sources: "file", "http" or "api" by the
// kubelet's words in the annotation kubernetes.io/config.source. Such a pod is the
// agent's own from then on. One that a source of the agent wants, with the same
// UID, runs on without a restart; one that none wants is ended as soon as all
// sources have synced. Stop the kubelet first: it would start them again.
//
// Labels of what runs cannot be changed, so that the option has to stay for as long
// as one of these sandboxes does: without it the agent does not see them any more.
// Pods of another agent have its id, and are never adopted.
//
// Without this option pods that bear no id, or another's, do not exist for the
// agent.
func WithAdoption(sources ...string) Option {
	return func(s *settings) error {
		if len(sources) == 0 || slices.Contains(sources, "") {
			return fmt.Errorf("adoption: sources %q must be named", sources)
		}
		s.adopt = append(s.adopt, sources...)
		return nil
	}
}

// WithObjects adds a place where ConfigMaps and Secrets of pods are found, such as an API server. Those that came with the sources
// take precedence, then each place is asked in the order of the options. It is called from the workers of pods, for several pods
// at once, and must return when ctx is done. podspec.ErrObjectNotFound is wrapped for an object that does not exist; any other error
// ends the search, and the pod waits and tries again.
func WithObjects(o podspec.Objects) Option {
	return func(s *settings) error {
		if o == nil {
			return errors.New("objects: nil")
		}
		s.objects = append(s.objects, o)
		return nil
	}
}

// WithCRINode sets how containers are created on this node: swap, the default seccomp profile, the quota period of CPU limits and so
// on (memorySwap, seccompDefault and cpuCFSQuotaPeriod of a kubelet). It is for the client that WithRuntimeEndpoint makes. Fields that
// are zero keep what cri.DetectNode finds; CgroupV2 is always detected, and MaskedPaths are added.
func WithCRINode(n cri.Node) Option {
	return func(s *settings) error {
		if err := n.Check(); err != nil {
			return fmt.Errorf("cri node: %w", err)
		}
		n.HugePageSizes, n.MaskedPaths = slices.Clone(n.HugePageSizes), slices.Clone(n.MaskedPaths)
		s.criNode = &n
		return s.once("cri node")
	}
}

// The options below replace a component. See Constructor; the default of each has its
// name with New.

// WithPLEG replaces NewPLEG.
func WithPLEG(f Constructor[PLEG]) Option { return replace("PLEG", f) }

// WithStatusManager replaces NewStatusManager.
func WithStatusManager(f Constructor[StatusManager]) Option { return replace("StatusManager", f) }

// WithProber replaces NewProber.
func WithProber(f Constructor[Prober]) Option { return replace("Prober", f) }

// WithVolumes replaces NewVolumes.
func WithVolumes(f Constructor[Volumes]) Option { return replace("Volumes", f) }

// WithCgroups replaces NewCgroups.
func WithCgroups(f Constructor[Cgroups]) Option { return replace("Cgroups", f) }

// WithUserNamespaces replaces NewUserNamespaces.
func WithUserNamespaces(f Constructor[UserNamespaces]) Option { return replace("UserNamespaces", f) }

// WithSyncer replaces NewSyncer.
func WithSyncer(f Constructor[Syncer]) Option { return replace("Syncer", f) }

// WithImageGC replaces NewImageGC.
func WithImageGC(f Constructor[ImageGC]) Option { return replace("ImageGC", f) }

// WithPodWorkers replaces NewPodWorkers.
func WithPodWorkers(f Constructor[PodWorkers]) Option { return replace("PodWorkers", f) }

// WithContainerGC replaces NewContainerGC.
func WithContainerGC(f Constructor[ContainerGC]) Option { return replace("ContainerGC", f) }

// WithLogRotator replaces NewLogRotator.
func WithLogRotator(f Constructor[LogRotator]) Option { return replace("LogRotator", f) }

// WithStats replaces NewStats.
func WithStats(f Constructor[Stats]) Option { return replace("Stats", f) }

// WithEviction replaces NewEviction.
func WithEviction(f Constructor[Eviction]) Option { return replace("Eviction", f) }

// WithSyncLoop replaces NewSyncLoop.
func WithSyncLoop(f Constructor[SyncLoop]) Option { return replace("SyncLoop", f) }

// WithRuntimeFunc replaces NewRuntime, for example to decorate the client of
// WithRuntimeEndpoint. WithRuntime sets a runtime that exists.
func WithRuntimeFunc(f Constructor[Runtime]) Option { return replace("Runtime", f) }

// WithObjectsFunc replaces NewObjects. WithObjects adds places to it.
func WithObjectsFunc(f Constructor[Objects]) Option { return replace("Objects", f) }

// WithRecorderFunc replaces NewRecorder. WithRecorder sets where that sends events.
func WithRecorderFunc(f Constructor[Recorder]) Option { return replace("Recorder", f) }

// WithRunner adds a component of the program's own. It is constructed after all others and
// runs as long as any of them: it is stopped last, together with the StatusManager. As
// with them, any return of its Run before that ends the agent. The name is for errors
// and logs.
func WithRunner(name string, f Constructor[Runner]) Option {
	return func(s *settings) error {
		if name == "" || f == nil {
			return fmt.Errorf("runner %q: name and constructor required", name)
		}
		s.runners = append(s.runners, namedRunner{name, f})
		return nil
	}
}

type namedRunner struct {
	name        string
	constructor Constructor[Runner]
}

// replace sets the constructor of a component.
func replace[T any](component string, f Constructor[T]) Option {
	return func(s *settings) error {
		if f == nil {
			return fmt.Errorf("%s: nil constructor", component)
		}
		if s.constructors == nil {
			s.constructors = map[string]any{}
		}
		s.constructors[component] = f
		return s.once(component)
	}
}

// complete sets what no option has set, and checks options against each other.
func (s *settings) complete() error {
	var errs []error
	if s.nodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("node name: cannot read the host name: %w; set WithNodeName", err))
		}
		s.nodeName = name
	}
	own := s.constructors["Runtime"] != nil
	switch real := s.runtime != nil || s.endpoint != ""; {
	case !real && !s.simulated && !own:
		errs = append(errs, ErrNoRuntime)
	case real && s.simulated:
		errs = append(errs, errors.New("simulated runtime: another runtime is set; use one of them"))
	}
	if s.rootDir == "" {
		if !s.simulated {
			errs = append(errs, errors.New("root dir: required with a container runtime, whose pods outlive the agent; set WithRootDir"))
		}
		s.rootDir, s.ephemeralRoot = filepath.Join(os.TempDir(), "sublet-"+rand.Text()), true
	}
	if s.runtime != nil && s.pulls != (cri.PullLimits{}) {
		errs = append(errs, errors.New("image pulls: WithImagePulls cannot be combined with WithRuntime; set cri.Config.Pulls"))
	}
	if s.runtime != nil && s.imageAccess.Policy != "" {
		errs = append(errs, errors.New("image verification: WithImageVerification cannot be combined with WithRuntime; set cri.Config.ImageAccess"))
	}
	if s.endpoint == "" && s.criNode != nil {
		errs = append(errs, errors.New("cri node: only for WithRuntimeEndpoint; set cri.Config.Node of the runtime"))
	}
	if s.node.PodLogsDir == "" {
		s.node.PodLogsDir = filepath.Join(s.rootDir, logsDirName)
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	for _, h := range s.observers {
		s.hooks = s.hooks.join(s.logger, h)
	}
	return errors.Join(errs...)
}

// optionsOf returns the given options that the default constructor of a component reads.
func (s *settings) optionsOf(component string) (given []string) {
	for _, o := range []struct {
		component, option string
		given             bool
	}{
		{"Recorder", "WithRecorder", s.recorder != nil},
		{"Runtime", "WithRuntime", s.runtime != nil},
		{"Runtime", "WithRuntimeEndpoint", s.endpoint != ""},
		{"Runtime", "WithSimulatedRuntime", s.simulated},
		{"Objects", "WithObjects", len(s.objects) > 0},
		{"StatusManager", "WithStatusSink", len(s.sinks) > 0},
		{"ImageGC", "WithImageGCPolicy", s.imagePolicy != nil},
		{"ContainerGC", "WithContainerGCPolicy", s.given["container collection"]},
		{"LogRotator", "WithLogRotation", s.given["log rotation"]},
		{"Eviction", "WithEvictionConfig", s.evict != nil},
	} {
		if o.component == component && o.given {
			given = append(given, o.option)
		}
	}
	return given
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
