package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/internal/lazycri"
	"github.com/sublet-dev/agent/internal/run"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/probe/grpchealth"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtimestate"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
	"github.com/sublet-dev/agent/userns"
	"github.com/sublet-dev/agent/volume"
)

// relistTimeout bounds a relist and an inspection. A runtime with tens of thousands
// of exited containers takes its time, and a slow response is better than none.
const relistTimeout = 2 * time.Minute

// Names of the directories in the root directory.
const (
	podsDirName     = "pods"
	logsDirName     = "logs"
	statusesDirName = "statuses"
)

func newComponents(s settings) *Components {
	c := &Components{NodeName: s.nodeName, RootDir: s.rootDir, Node: s.node, Logger: s.logger, opts: s}
	c.Owner = func() string {
		if id := c.ownerID.Load(); id != nil {
			return *id
		}
		return ""
	}
	return c
}

func (c *Components) path(name string) string { return filepath.Join(c.RootDir, name) }

// build builds the components in order.
func (c *Components) build() error {
	for _, step := range []func() error{
		c.detectNode,
		component(c, "Recorder", &c.Recorder, NewRecorder),
		component(c, "Runtime", &c.Runtime, NewRuntime),
		c.checkCapabilities,
		func() (err error) {
			c.RuntimeState, c.PodCache = runtimestate.New(c.Runtime), new(podcache.Cache)
			if c.saved, err = status.NewFileSink(c.path(statusesDirName)); err != nil {
				return err
			}
			c.Sources, err = podsource.New(podsource.Config{
				NodeName: c.NodeName, Sources: c.opts.sources, Recorder: c.Recorder, Logger: c.Logger, Hooks: c.opts.hooks.Sources,
			})
			return err
		},
		component(c, "Objects", &c.Objects, NewObjects),
		component(c, "PLEG", &c.PLEG, NewPLEG),
		component(c, "StatusManager", &c.StatusManager, NewStatusManager),
		component(c, "Prober", &c.Prober, NewProber),
		component(c, "Volumes", &c.Volumes, NewVolumes),
		optional(c, "Cgroups", &c.Cgroups, NewCgroups),
		component(c, "UserNamespaces", &c.UserNamespaces, NewUserNamespaces),
		component(c, "Syncer", &c.Syncer, NewSyncer),
		optional(c, "ImageGC", &c.ImageGC, NewImageGC),
		component(c, "PodWorkers", &c.PodWorkers, NewPodWorkers),
		optional(c, "ContainerGC", &c.ContainerGC, NewContainerGC),
		optional(c, "LogRotator", &c.LogRotator, NewLogRotator),
		component(c, "Stats", &c.Stats, NewStats),
		optional(c, "Eviction", &c.Eviction, NewEviction),
		func() (err error) { c.PodManager, err = newPodManager(c); return err },
		component(c, "SyncLoop", &c.SyncLoop, NewSyncLoop),
		func() (err error) { c.NodeStatus, err = newNodeStatus(c); return err },
		c.buildRunners,
	} {
		if err := step(); err != nil {
			return err // later components need the earlier ones
		}
	}
	return nil
}

// buildRunners calls the constructors of WithRunner.
func (c *Components) buildRunners() error {
	for _, r := range c.opts.runners {
		runner, err := r.constructor(c)
		if err == nil && runner == nil {
			err = errors.New("the constructor returned nil")
		}
		if err != nil {
			return fmt.Errorf("runner %q: %w", r.name, err)
		}
		c.runners = append(c.runners, run.Component{Name: r.name, Run: runner.Run})
	}
	return nil
}

// component returns the step that builds one component: by the constructor of its option,
// or else by the default one.
func component[T any](c *Components, name string, into *T, def Constructor[T]) func() error {
	return func() error {
		if err := optional(c, name, into, def)(); err != nil {
			return err
		}
		if any(*into) == nil {
			return fmt.Errorf("option With%s: the constructor returned nil", name)
		}
		return nil
	}
}

// optional is the same for a component that may be nil.
func optional[T any](c *Components, name string, into *T, def Constructor[T]) func() error {
	return func() (err error) {
		given, replaced := c.opts.constructors[name].(Constructor[T])
		if !replaced {
			given = def
		}
		if *into, err = given(c); err != nil {
			return err
		}
		if ignored := c.opts.optionsOf(name); replaced && len(ignored) > 0 && !slices.Contains(c.defaults, name) {
			return fmt.Errorf("no effect of %s: the constructor that replaces New%s does not call it", strings.Join(ignored, ", "), name)
		}
		return nil
	}
}

// NewRecorder returns the default Recorder: it aggregates repeated events and passes them
// to that of WithRecorder, if there is one.
func NewRecorder(c *Components) (Recorder, error) {
	c.defaults = append(c.defaults, "Recorder")
	return events.New(c.opts.recorder), nil
}

// NewRuntime returns the Runtime of WithRuntime, or a client of the one that
// WithRuntimeEndpoint or WithSimulatedRuntime name. The client connects when the agent runs.
func NewRuntime(c *Components) (Runtime, error) {
	c.defaults = append(c.defaults, "Runtime")
	if c.opts.runtime != nil {
		return c.opts.runtime, nil
	}
	config := func() cri.Config {
		return cri.Config{
			Owner: c.Owner(), AdoptSources: c.opts.adopt, Pulls: c.opts.pulls, ImageAccess: c.opts.imageAccess,
			Recorder: c.Recorder, Logger: c.Logger, Hooks: c.opts.hooks.CRI,
		}
	}
	if c.opts.endpoint == "" {
		return lazycri.NewEmbedded(embedded.Config{Executor: simulated.New(simulated.Config{}), Logger: c.Logger, Grace: -1}, config), nil // they need no grace period
	}
	return lazycri.New(c.opts.endpoint, c.opts.image, func() cri.Config {
		cfg := config()
		if node := c.opts.criNode; node != nil {
			cfg.Node = *node
		}
		cfg.Node = cfg.Node.WithDetected(cri.DetectNode(os.DirFS("/")))
		cfg.ImageAccess.File = c.path("pulled-images.json")
		return cfg
	}), nil
}

// NewObjects returns the default Objects: those that came with the pods, then those of
// WithObjects in their order.
func NewObjects(c *Components) (Objects, error) {
	c.defaults = append(c.defaults, "Objects")
	return podspec.FirstObjects(append([]podspec.Objects{c.Sources}, c.opts.objects...)...), nil
}

// NewPLEG returns the default PLEG, a pleg.Generator.
func NewPLEG(c *Components) (PLEG, error) {
	state := Hooks{PLEG: pleg.Hooks{Relisted: c.RuntimeState.Relisted, Inspected: c.RuntimeState.Inspected, StreamChanged: c.RuntimeState.StreamChanged}}
	return pleg.New(pleg.Config{
		Runtime: c.Runtime, Cache: c.PodCache, Timeout: relistTimeout, Logger: c.Logger, Hooks: c.observersAfter(state).PLEG,
	})
}

// NewStatusManager returns the default StatusManager, a status.Manager with the sinks of
// WithStatusSink. It keeps statuses in the root directory for the next process.
func NewStatusManager(c *Components) (StatusManager, error) {
	c.defaults = append(c.defaults, "StatusManager")
	return status.New(status.Config{
		Sinks: append([]status.Sink{c.saved}, c.opts.sinks...), NodeInfo: c.nodeInfo, Logger: c.Logger, Hooks: c.opts.hooks.Status,
	})
}

// NewProber returns the default Prober, a probe.Manager.
func NewProber(c *Components) (Prober, error) {
	dial := runtime.Dialer(c.Runtime)
	return probe.New(probe.Config{
		PodCache: c.PodCache, Execer: c.Runtime, GRPC: grpchealth.New(grpchealth.Config{Dial: dial}).Check, Dial: dial,
		HostIP: c.Node.HostIP(), Recorder: c.Recorder, Logger: c.Logger, Hooks: c.opts.hooks.Probe,
	})
}

// NewVolumes returns the default Volumes, a volume.Manager.
func NewVolumes(c *Components) (Volumes, error) {
	return volume.New(volume.Config{Root: c.RootDir, Allocatable: c.Node.Allocatable, Logger: c.Logger})
}

// NewCgroups returns the default Cgroups, a cgroup.Manager; nil with
// node.Config.DisableCgroups.
func NewCgroups(c *Components) (Cgroups, error) {
	if c.Node.DisableCgroups {
		return nil, nil
	}
	cfg := cgroup.Config{
		Parent: c.Node.CgroupRoot, Driver: c.Node.CgroupDriver, Allocatable: c.Node.EffectivePodsCgroupLimits(), PodPidsLimit: c.Node.PodPidsLimit,
		Owner: c.Owner, Logger: c.Logger,
	}
	if rt, ok := runtime.Capability[runtime.CgroupDriverReporter](c.Runtime); ok {
		cfg.RuntimeDriver = rt.CgroupDriver
	}
	return cgroup.New(cfg)
}

// NewUserNamespaces returns the default UserNamespaces, a userns.Manager.
func NewUserNamespaces(c *Components) (UserNamespaces, error) {
	return userns.New(userns.Config{PodsDir: c.path(podsDirName), SubIDFS: os.DirFS("/etc")})
}

// NewSyncer returns the default Syncer, a podsync.Syncer.
func NewSyncer(c *Components) (Syncer, error) {
	return podsync.New(podsync.Config{
		Runtime: c.Runtime, PodCache: c.PLEG, Statuses: c.StatusManager, PodKiller: podKiller{c}, Volumes: c.Volumes, Cgroups: c.Cgroups,
		UserNamespaces: c.UserNamespaces, Probes: c.Prober, Objects: c.Objects, BackOff: c.opts.backOff, SoftAdmitters: c.opts.softAdmitters,
		NetworkReady: c.RuntimeState.Network, Recorder: c.Recorder, Logger: c.Logger,
		PodsDir: c.path(podsDirName), LogsDir: c.Node.PodLogsDir, Owner: c.Owner,
		Node: podsync.Node{
			Name: c.NodeName, IPs: c.Node.IPs, Allocatable: c.Node.Allocatable,
			ResolvConf: c.Node.ResolvConf, ClusterDNS: c.Node.ClusterDNS, ClusterDomain: c.Node.ClusterDomain,
		},
	})
}

// NewImageGC returns the default ImageGC, an imagegc.Collector; nil without
// WithImageGCPolicy.
func NewImageGC(c *Components) (ImageGC, error) {
	c.defaults = append(c.defaults, "ImageGC")
	if c.opts.imagePolicy == nil {
		return nil, nil
	}
	var images imageStore
	images.ImageStore, _ = runtime.Capability[runtime.ImageStore](c.Runtime)
	images.ImageUser, _ = runtime.Capability[runtime.ImageUser](c.Runtime)
	images.ImageFSReporter, _ = runtime.Capability[runtime.ImageFSReporter](c.Runtime)
	cfg := imagegc.Config{
		Images: images, Policy: *c.opts.imagePolicy, KeepImages: c.opts.imageKeep, RecordsFile: c.path("images.json"), Period: c.opts.timing.ImageGCPeriod,
		Ready: func() error { return c.SyncLoop.Healthy() }, Unsynced: c.Sources.FirstUnsynced,
		NodeName: c.NodeName, Recorder: c.Recorder, Logger: c.Logger, Hooks: c.opts.hooks.ImageGC,
	}
	if rt, ok := runtime.Capability[runtime.SandboxImageReporter](c.Runtime); ok {
		cfg.SandboxImage = rt.SandboxImage
	}
	return imagegc.New(cfg)
}

// NewPodWorkers returns the default PodWorkers, podworkers.Workers. They give pods leases
// on their images while there is an ImageGC.
func NewPodWorkers(c *Components) (PodWorkers, error) {
	var syncer podworkers.Syncer = c.Syncer
	if c.ImageGC != nil {
		syncer = imagegc.LeasingSyncer{Syncer: c.Syncer, Images: c.ImageGC}
	}
	own := Hooks{PodWorkers: podworkers.Hooks{SyncEnded: c.syncEnded, PodFinished: c.podFinished}}
	return podworkers.New(podworkers.Config{
		Syncer: syncer, Inspector: c.PLEG, Observer: c.PLEG,
		ResyncPeriod: c.opts.timing.ResyncPeriod, BackOff: c.opts.timing.SyncBackOff, Jitter: c.opts.timing.Jitter,
		Logger: c.Logger, Hooks: c.observersAfter(own).PodWorkers,
	})
}

// NewContainerGC returns the default ContainerGC, a containergc.Collector; nil if the
// runtime cannot remove containers.
func NewContainerGC(c *Components) (ContainerGC, error) {
	c.defaults = append(c.defaults, "ContainerGC")
	rt, ok := runtime.Capability[runtime.ContainerRemover](c.Runtime)
	if !ok {
		return nil, nil
	}
	return containergc.New(containergc.Config{
		Containers: struct {
			runtime.ContainerRemover
			cachedPods
		}{rt, cachedPods{c.PodCache}},
		PodState: containergc.PodStates{Sources: c.Sources, Workers: c.PodWorkers, Cache: c.PodCache}.State,
		Policy:   c.opts.containerGCPolicy, LogsDir: c.Node.PodLogsDir, LinksDir: c.Node.LogLinksDir, Owner: c.Owner,
		Logger: c.Logger, Hooks: c.opts.hooks.ContainerGC,
	})
}

// NewLogRotator returns the default LogRotator, a logrotate.Rotator; nil if the runtime
// cannot reopen logs or WithLogRotation turns it off.
func NewLogRotator(c *Components) (LogRotator, error) {
	c.defaults = append(c.defaults, "LogRotator")
	rt, ok := runtime.Capability[runtime.LogReopener](c.Runtime)
	if !ok || c.opts.rotation.MaxSize < 0 {
		return nil, nil
	}
	return logrotate.New(logrotate.Config{
		Runtime: struct {
			runtime.LogReopener
			cachedPods
		}{rt, cachedPods{c.PodCache}},
		LogsDir: c.Node.PodLogsDir, MaxSize: c.opts.rotation.MaxSize, MaxFiles: c.opts.rotation.MaxFiles,
		Logger: c.Logger, Hooks: c.opts.hooks.LogRotation,
	})
}

// NewStats returns the default Stats, a stats.Provider.
func NewStats(c *Components) (Stats, error) {
	pods := stats.Locator{Pods: c.evictor(), Dirs: c.Syncer, Volumes: c.Volumes}
	cfg := stats.Config{NodeCgroup: c.Node.NodeCgroup, NodeFS: c.RootDir, Logger: c.Logger}
	if c.Cgroups != nil {
		pods.Cgroups, cfg.PodsCgroup = c.Cgroups, c.Cgroups.PodsCgroup
	}
	if c.opts.evict != nil {
		pods.IsTracked = eviction.HasLocalStorageLimit
	}
	cfg.Pods, cfg.TrackedPods = pods.All, pods.Tracked
	cfg.ContainerStats, _ = runtime.Capability[runtime.ContainerStatsReporter](c.Runtime)
	cfg.ImageFS, _ = runtime.Capability[runtime.ImageFSReporter](c.Runtime)
	return stats.New(cfg)
}

// NewEviction returns the default Eviction, an eviction.Manager; nil without
// WithEvictionConfig.
func NewEviction(c *Components) (Eviction, error) {
	c.defaults = append(c.defaults, "Eviction")
	if c.opts.evict == nil {
		return nil, nil
	}
	cfg := *c.opts.evict
	cfg.Pods, cfg.NodeName, cfg.Recorder, cfg.Logger = c.evictor(), c.NodeName, c.Recorder, c.Logger
	cfg.Hooks = c.observersAfter(Hooks{Eviction: cfg.Hooks}).Eviction
	if cfg.Usage == nil {
		kernel := eviction.KernelConfig{NodeCgroup: c.Node.NodeCgroup}
		if c.Cgroups != nil {
			kernel.PodsCgroup = c.Cgroups.PodsCgroup
		}
		cfg.Usage, cfg.Notifiers = c.Stats, append(eviction.KernelNotifiers(kernel), cfg.Notifiers...)
	}
	if c.ContainerGC != nil {
		cfg.Reclaimers = append(cfg.Reclaimers, c.ContainerGC)
	}
	if c.ImageGC != nil {
		cfg.Reclaimers = append(cfg.Reclaimers, c.ImageGC)
	}
	return eviction.New(cfg)
}

func newPodManager(c *Components) (*syncloop.PodManager, error) {
	if c.Node.UnsupportedFields == nil {
		c.Node.UnsupportedFields = c.unsupportedFields()
	}
	fits, err := admission.New(admission.Config{
		NodeName: c.NodeName, Allocatable: c.Node.Allocatable, MaxPods: c.Node.MaxPods, Labels: c.Node.Labels, Taints: c.Node.Taints,
		LabelsFunc: c.opts.nodeLabels, Unsupported: c.Node.UnsupportedFields, AllowedUnsafeSysctls: c.Node.AllowedUnsafeSysctls, Kernel: admission.KernelRelease(),
	})
	if err != nil {
		return nil, err
	}
	release := func(pod *corev1.Pod, _, _ string) { c.releaseImages(pod.UID) }
	cfg := syncloop.PodManagerConfig{
		Workers: c.PodWorkers, Statuses: c.StatusManager, Probes: c.Prober, Inspector: c.PLEG,
		Admitters: append([]syncloop.Admitter{fits}, c.opts.admit...),
		Expected:  func() []*corev1.Pod { return c.Sources.Expected(c.StatusManager.Pods()) },
		Recorder:  c.Recorder, Logger: c.Logger,
		Hooks: c.observersAfter(Hooks{PodManager: syncloop.PodManagerHooks{Rejected: release}}).PodManager,
	}
	if c.Eviction != nil {
		cfg.Admitters, cfg.UnderPressure = append(cfg.Admitters, c.Eviction), c.Eviction.UnderPressure
	}
	return syncloop.NewPodManager(cfg)
}

// NewSyncLoop returns the default SyncLoop, a syncloop.Loop with a Housekeeper.
func NewSyncLoop(c *Components) (SyncLoop, error) {
	stores := []syncloop.PodStore{{Name: "pod directories", PodUIDs: c.Syncer.ListPodsFromDisk, Remove: c.Syncer.CleanupOrphan}}
	if c.Cgroups != nil {
		stores = append(stores, syncloop.PodStore{Name: "cgroups", PodUIDs: c.Cgroups.PodUIDs, Remove: c.Cgroups.Remove})
	}
	stores = append(stores, syncloop.PodStore{
		Name:    "statuses",
		PodUIDs: func() ([]types.UID, error) { return c.StatusManager.PodUIDs(), nil },
		Remove: func(_ context.Context, uid types.UID) error {
			c.StatusManager.Forget(uid)
			c.releaseImages(uid)
			return nil
		},
	})
	housekeeper, err := syncloop.NewHousekeeper(syncloop.HousekeeperConfig{
		Workers: c.PodWorkers, PodManager: c.PodManager, Sources: c.Sources, PodCache: c.PodCache, Inspector: c.PLEG, Stores: stores,
		Logger: c.Logger, Hooks: c.opts.hooks.Housekeeper,
	})
	if err != nil {
		return nil, err
	}
	return syncloop.New(syncloop.Config{
		Changes: c.Sources.Changes(), Handler: c.PodManager, Workers: c.PodWorkers, Events: c.PLEG, Probes: c.Prober, Cleaner: housekeeper,
		RuntimeState: c.RuntimeState, HousekeepingPeriod: c.opts.timing.HousekeepingPeriod, Logger: c.Logger, Hooks: c.opts.hooks.SyncLoop,
	})
}

// syncEnded removes the exited containers of a pod that has many.
func (c *Components) syncEnded(_ context.Context, call podworkers.SyncCall, _ time.Duration, _ runtime.SyncResult, _ error) {
	if pod, ok := c.PodCache.Get(call.UID); ok && c.ContainerGC != nil {
		c.ContainerGC.RequestCollectionFor(pod)
	}
}

// podFinished removes what a finished pod has left in the runtime.
func (c *Components) podFinished(uid types.UID) {
	c.releaseImages(uid)
	if c.ContainerGC != nil {
		c.ContainerGC.RequestCollection()
	}
}

func (c *Components) releaseImages(uid types.UID) {
	if c.ImageGC != nil {
		c.ImageGC.Release(uid)
	}
}

// evictor has the pods that can be evicted.
func (c *Components) evictor() podworkers.Evictor {
	return podworkers.Evictor{Workers: c.PodWorkers, Statuses: c.StatusManager}
}

// nodeInfo returns what statuses report about the node.
func (c *Components) nodeInfo() status.NodeInfo {
	return status.NodeInfo{HostIPs: c.Node.IPs, RuntimeName: c.RuntimeState.Name()}
}

// imageStore is what the collection of images needs of a runtime.
type imageStore struct {
	runtime.ImageStore
	runtime.ImageUser
	runtime.ImageFSReporter
}

// cachedPods returns the observed pods from memory, so that garbage collection costs the
// runtime no call. An exited container stays exited: an old state only removes it later.
type cachedPods struct{ cache *podcache.Cache }

func (p cachedPods) Pods(context.Context) ([]runtime.Pod, error) { return p.cache.Pods(), nil }

// podKiller requests the termination of a pod from the workers, which are built later.
type podKiller struct{ c *Components }

func (k podKiller) RequestKill(uid types.UID, t runtime.Termination) {
	k.c.PodWorkers.RequestKill(uid, podworkers.KillOptions{Termination: t})
}

// connecter is a runtime that has to be connected to.
type connecter interface {
	Connect() (disconnect func() error, err error)
}

// connect connects to the runtime, if NewRuntime has made it, or tells it its owner.
func (c *Components) connect() (disconnect func() error, err error) {
	if rt, ok := runtime.Capability[connecter](c.Runtime); ok {
		return rt.Connect()
	}
	if rt, ok := runtime.Capability[runtime.OwnerSetter](c.Runtime); ok {
		rt.SetOwner(c.Owner(), c.opts.adopt)
	}
	return nil, nil
}
