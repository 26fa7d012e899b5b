package agent

import (
	"context"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/internal/lazycri"
	"github.com/sublet-dev/agent/internal/settings"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podlogs"
	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/probe/grpchealth"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
	"github.com/sublet-dev/agent/userns"
	"github.com/sublet-dev/agent/volume"
)

// NewRecorder returns the default Recorder: it aggregates repeated events and passes them to that of WithRecorder, if any.
func NewRecorder(c *Components) (Recorder, error) {
	sink, _ := settings.Get[eventSink](&c.options.Store)
	return events.New(sink.Recorder), nil
}

// NewRuntime returns the Runtime of WithRuntime, or a client of the one that WithRuntimeEndpoint or WithSimulatedRuntime name.
// The client connects when the agent runs.
func NewRuntime(c *Components) (Runtime, error) {
	choice, _ := settings.Get[lazycri.Choice](&c.options.Store)
	if rt, given := choice.Given.(Runtime); given {
		return rt, nil
	}
	own := cri.Config{Owner: "set by Run", AdoptSources: c.adopt, Recorder: c.Recorder, Logger: c.Logger, Hooks: c.Hooks.CRI, LogLinksDir: c.Node.LogLinksDir}
	own.Node.MemoryQoS = c.Node.MemoryQoS
	if !choice.Simulated {
		own.ImageAccess.File = c.path("pulled-images.json")
	}
	cfg, err := settings.Complete(&c.options.Store, own)
	return lazycri.New(choice, cfg, c.Owner), err
}

// NewObjects returns the default Objects: those that came with the pods, then those of WithObjects in their order.
func NewObjects(c *Components) (Objects, error) {
	added, _ := settings.Get[objectPlaces](&c.options.Store)
	return podspec.FirstObjects(append([]podspec.Objects{c.Sources}, added.Places...)...), nil
}

// NewPLEG returns the default PLEG, a pleg.Generator.
func NewPLEG(c *Components) (PLEG, error) {
	own := pleg.Hooks{Relisted: c.RuntimeState.Relisted, Inspected: c.RuntimeState.Inspected, StreamChanged: c.RuntimeState.StreamChanged}
	return configured(c, pleg.New, pleg.Config{Runtime: c.Runtime, Cache: c.PodCache, Logger: c.Logger, Hooks: own.Join(c.Logger, c.Hooks.PLEG)})
}

// NewStatusManager returns the default StatusManager, a status.Manager with the sinks of WithStatusSink. It keeps statuses in
// the root directory for the next process.
func NewStatusManager(c *Components) (StatusManager, error) {
	c.saved.DelayPending(5 * time.Second) // longer than most starts take
	return configured(c, status.New, status.Config{
		Sinks: []status.Sink{c.saved, &c.Watchers}, NodeInfo: c.nodeInfo, Logger: c.Logger, Hooks: c.Hooks.Status,
	})
}

// NewProber returns the default Prober, a probe.Manager.
func NewProber(c *Components) (Prober, error) {
	dial := runtime.Dialer(c.Runtime)
	return configured(c, probe.New, probe.Config{
		PodCache: c.PodCache, Execer: c.Runtime, GRPC: grpchealth.New(grpchealth.Config{Dial: dial}).Check, Dial: dial,
		HostIP: c.Node.HostIP, Recorder: c.Recorder, Logger: c.Logger, Hooks: c.Hooks.Probe,
	})
}

// NewVolumes returns the default Volumes, a volume.Manager.
func NewVolumes(c *Components) (Volumes, error) {
	return configured(c, volume.New, volume.Config{Root: c.RootDir, Allocatable: c.Node.Allocatable, Logger: c.Logger, Hooks: c.Hooks.Volumes, NodeLabels: settings.Value[admission.Config](&c.options.Store).NodeLabels(c.NodeName, c.Node.Labels)})
}

// NewCgroups returns the default Cgroups, a cgroup.Manager; nil with node.Config.DisableCgroups.
func NewCgroups(c *Components) (Cgroups, error) {
	if c.Node.DisableCgroups {
		return nil, nil
	}
	injectors, _ := settings.Peek[podsync.Config](&c.options.Store)
	return configured(c, cgroup.New, cgroup.Config{
		Parent: c.Node.CgroupRoot, Driver: c.Node.CgroupDriver, RuntimeDriver: cgroup.RuntimeDriverOf(c.Runtime), CPUQuotaPeriod: settings.Value[cri.Config](&c.options.Store).Node.CPUQuotaPeriod,
		Allocatable: c.Node.EffectivePodsCgroupLimits(), PodPidsLimit: c.Node.PodPidsLimit, Owner: c.Owner, NodeName: c.NodeName, Recorder: c.Recorder, Logger: c.Logger,
		MemoryQoS: c.Node.MemoryQoS, NoCPUQuota: settings.Value[cri.Config](&c.options.Store).Node.NoCPUQuota, HasExclusiveCPUs: podsync.PodHasExclusiveCPUs(c.Logger, injectors.Injectors), Hooks: c.Hooks.Cgroups,
	})
}

// NewUserNamespaces returns the default UserNamespaces, a userns.Allocator.
func NewUserNamespaces(c *Components) (UserNamespaces, error) {
	return configured(c, userns.New, userns.Config{PodsDir: c.path(podsDirName), SubIDFS: os.DirFS("/etc")})
}

// NewSyncer returns the default Syncer, a podsync.Syncer.
func NewSyncer(c *Components) (Syncer, error) {
	return configured(c, podsync.New, podsync.Config{
		Runtime: c.Runtime, PodCache: c.PLEG, Statuses: c.StatusManager, PodKiller: podKiller{c}, Volumes: c.Volumes, Cgroups: c.Cgroups,
		UserNamespaces: c.UserNamespaces, Probes: c.Prober, Objects: c.Objects, NetworkReady: c.RuntimeState.Network, Recorder: c.Recorder,
		Logger: c.Logger, PodsDir: c.path(podsDirName), LogsDir: c.Node.PodLogsDir, Owner: c.Owner, Hooks: c.Hooks.PodSync,
		Node: podsync.Node{
			Name: c.NodeName, IPs: c.Node.HostIPs, Allocatable: c.Node.Allocatable,
			ResolvConf: c.Node.ResolvConf, ClusterDNS: c.Node.ClusterDNS, ClusterDomain: c.Node.ClusterDomain,
		},
	})
}

// NewImageGC returns the default ImageGC, an imagegc.Collector; nil without its Config.
func NewImageGC(c *Components) (ImageGC, error) {
	if !settings.Has[imagegc.Config](&c.options.Store) {
		return nil, nil
	}
	return configured(c, imagegc.New, imagegc.Config{
		Images: imagegc.ImagesOf(c.Runtime), SandboxImage: imagegc.SandboxImageOf(c.Runtime), RecordsFile: c.path("images.json"),
		Ready: func() error { return c.SyncLoop.Healthy() }, Unsynced: c.Sources.FirstUnsynced,
		NodeName: c.NodeName, Recorder: c.Recorder, Logger: c.Logger, Hooks: c.Hooks.ImageGC,
	})
}

// NewPodWorkers returns the default PodWorkers, podworkers.Workers. They give pods leases on their images while there is an ImageGC.
func NewPodWorkers(c *Components) (PodWorkers, error) {
	var syncer podworkers.Syncer = c.Syncer
	if c.ImageGC != nil {
		syncer = imagegc.LeasingSyncer{Syncer: c.Syncer, Images: c.ImageGC}
	}
	own := podworkers.Hooks{SyncEnded: c.syncEnded, PodFinished: c.podFinished}
	return configured(c, podworkers.New, podworkers.Config{
		Syncer: syncer, Inspector: c.PLEG, Observer: c.PLEG, Logger: c.Logger, Hooks: own.Join(c.Logger, c.Hooks.PodWorkers),
	})
}

// NewContainerGC returns the default ContainerGC, a containergc.Collector; nil if the runtime cannot remove containers.
func NewContainerGC(c *Components) (ContainerGC, error) {
	rt, ok := runtime.Capability[runtime.ContainerRemover](c.Runtime)
	if !ok {
		return nil, nil
	}
	return configured(c, containergc.New, containergc.Config{
		Containers: struct {
			runtime.ContainerRemover
			podcache.Lister
		}{rt, podcache.Lister{Cache: c.PodCache}},
		PodState: containergc.PodStates{Sources: c.Sources, Workers: c.PodWorkers, Cache: c.PodCache}.State, NodeName: c.NodeName, Recorder: c.Recorder,
		LogsDir: c.Node.PodLogsDir, LinksDir: c.Node.LogLinksDir, Owner: c.Owner, Logger: c.Logger, Hooks: c.Hooks.ContainerGC,
	})
}

// NewLogRotator returns the default LogRotator, a logrotate.Rotator; nil if the runtime cannot reopen logs.
func NewLogRotator(c *Components) (LogRotator, error) {
	rt, ok := runtime.Capability[runtime.LogReopener](c.Runtime)
	if !ok && !settings.Has[logrotate.Config](&c.options.Store) {
		return nil, nil
	}
	return configured(c, logrotate.New, logrotate.Config{
		Runtime: struct {
			runtime.LogReopener
			podcache.Lister
		}{rt, podcache.Lister{Cache: c.PodCache}},
		LogsDir: c.Node.PodLogsDir, Logger: c.Logger, Hooks: c.Hooks.LogRotation,
		WaitForEvents: settings.Value[lazycri.Choice](&c.options.Store).Endpoint != "", // without a socket it may be in a bubble
	})
}

// NewStats returns the default Stats, a stats.Provider.
func NewStats(c *Components) (Stats, error) {
	pods := stats.Locator{Pods: c.evictor(), Dirs: c.Syncer, Volumes: c.Volumes}
	cfg := stats.Config{NodeCgroup: c.Node.NodeCgroup, NodeFS: c.RootDir, Logger: c.Logger}
	if c.Cgroups != nil {
		pods.Cgroups, cfg.PodsCgroup = c.Cgroups, c.Cgroups.PodsCgroup
	}
	if settings.Has[eviction.Config](&c.options.Store) {
		pods.IsTracked = eviction.HasLocalStorageLimit
	}
	cfg.Pods, cfg.TrackedPods, cfg.DriverVolumes = pods.All, pods.Tracked, pods
	cfg.ContainerStats, _ = runtime.Capability[runtime.ContainerStatsReporter](c.Runtime)
	cfg.ImageFS, _ = runtime.Capability[runtime.ImageFSReporter](c.Runtime)
	return configured(c, stats.New, cfg)
}

// NewEviction returns the default Eviction, an eviction.Manager; nil without its Config.
func NewEviction(c *Components) (Eviction, error) {
	given, ok := settings.Peek[eviction.Config](&c.options.Store)
	if !ok {
		return nil, nil
	}
	cfg := eviction.Config{Pods: c.evictor(), NodeName: c.NodeName, Recorder: c.Recorder, Logger: c.Logger, Hooks: c.Hooks.Eviction}
	if given.Usage == nil {
		kernel := eviction.KernelConfig{NodeCgroup: c.Node.NodeCgroup}
		if c.Cgroups != nil {
			kernel.PodsCgroup = c.Cgroups.PodsCgroup
		}
		cfg.Usage, cfg.Notifiers = c.Stats, eviction.KernelNotifiers(kernel)
	}
	if c.ContainerGC != nil {
		cfg.Reclaimers = append(cfg.Reclaimers, c.ContainerGC)
	}
	if c.ImageGC != nil {
		cfg.Reclaimers = append(cfg.Reclaimers, c.ImageGC)
	}
	return configured(c, eviction.New, cfg)
}

func newPodManager(c *Components) (*syncloop.PodManager, error) {
	injectors, _ := settings.Peek[podsync.Config](&c.options.Store)
	if c.Node.UnsupportedFields == nil {
		c.Node.UnsupportedFields = podsync.Supported(injectors.Injectors, settings.Value[volume.Config](&c.options.Store).Supported(podspec.UnsupportedWith(c.Objects)))
		if runtime.RunsPods(c.Runtime) { // and rejects what it does not support
			c.Node.UnsupportedFields = func(*corev1.Pod) field.ErrorList { return nil }
		}
	}
	podsync.NotifyHealth(injectors.Injectors, func(uid types.UID) { c.PodWorkers.Requeue(uid, podworkers.RequeueNow) })
	_, devices := podsync.ProvidedResources(c.Logger, injectors.Injectors)
	fits, err := configured(c, admission.New, admission.Config{
		NodeName: c.NodeName, Allocatable: c.Node.Allocatable, MaxPods: c.Node.MaxPods, Labels: c.Node.Labels, Taints: c.Node.Taints,
		Unsupported: c.Node.UnsupportedFields, AllowedUnsafeSysctls: c.Node.AllowedUnsafeSysctls, Kernel: admission.KernelRelease(), Devices: devices, StrictGroups: c.RuntimeState.StrictGroups,
	})
	if err != nil {
		return nil, err
	}
	own := syncloop.PodManagerHooks{Rejected: func(pod *corev1.Pod, _, _ string) { c.releaseImages(pod.UID) }}
	cfg := syncloop.PodManagerConfig{
		Workers: c.PodWorkers, Statuses: c.StatusManager, Probes: c.Prober, Inspector: c.PLEG, Admitters: []syncloop.Admitter{fits}, Preemptor: fits,
		Expected: func() []*corev1.Pod { return c.Sources.Expected(c.StatusManager.Pods()) },
		Observed: c.PodCache.Get, Reported: c.StatusManager.Pods, Recorder: c.Recorder, Logger: c.Logger, Hooks: own.Join(c.Logger, c.Hooks.PodManager),
	}
	if c.Eviction != nil {
		cfg.Admitters, cfg.UnderPressure = append(cfg.Admitters, c.Eviction), c.Eviction.UnderPressure
	}
	return configured(c, syncloop.NewPodManager, cfg)
}

// NewSyncLoop returns the default SyncLoop, a syncloop.Loop with a Housekeeper.
func NewSyncLoop(c *Components) (SyncLoop, error) {
	housekeeper, err := configured(c, syncloop.NewHousekeeper, syncloop.HousekeeperConfig{
		Workers: c.PodWorkers, PodManager: c.PodManager, Sources: c.Sources, PodCache: c.PodCache, Inspector: c.PLEG,
		Stores: syncloop.Stores(c.Syncer, c.Cgroups, c.StatusManager, c.releaseImages), Logger: c.Logger, Hooks: c.Hooks.Housekeeper,
	})
	if err != nil {
		return nil, err
	}
	return configured(c, syncloop.New, syncloop.Config{
		Changes: c.Sources.Changes(), Handler: c.PodManager, Workers: c.PodWorkers, Events: c.PLEG, Probes: c.Prober, Cleaner: housekeeper,
		RuntimeState: c.RuntimeState, Logger: c.Logger, Hooks: c.Hooks.SyncLoop,
	})
}

// newNodeStatus returns what the agent reports about its node.
func newNodeStatus(c *Components) (_ *node.Status, err error) {
	conditions := node.ConditionsConfig{Checks: append([]node.Check{c.SyncLoop.Healthy, c.runtimeHealthy, c.PLEG.Healthy}, c.Node.ReadyChecks...), Logger: c.Logger}
	if c.Eviction != nil {
		conditions.Reporters = append(conditions.Reporters, c.Eviction)
	}
	conditions.Reporters = append(conditions.Reporters, c.Node.ConditionReporters...)
	cfg := c.Node.StatusConfig(c.NodeName, os.DirFS("/"))
	cfg.Runtime = c.RuntimeState.Status
	cfg.DeclaredFeatures = slices.Compact(slices.Sorted(slices.Values(slices.Concat(runtime.DeclaredFeatures(c.Runtime), c.Node.DeclaredFeatures))))
	injectors, _ := settings.Peek[podsync.Config](&c.options.Store)
	cfg.Devices, cfg.AllocatableDevices = podsync.ProvidedResources(c.Logger, injectors.Injectors)
	if store, ok := runtime.Capability[runtime.ImageStore](c.Runtime); ok {
		cfg.Images = store.Images
	}
	if cfg.Conditions, err = node.NewConditions(conditions); err != nil {
		return nil, err
	}
	return node.NewStatus(cfg)
}

// newOperator returns the operations on the pods of the agent.
func newOperator(c *Components) (*podops.Operator, error) {
	logs, err := podlogs.New(podlogs.Config{LogsDir: c.Node.PodLogsDir, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	pods := status.View{
		Statuses: c.StatusManager, PodCache: c.PodCache, RuntimeState: c.RuntimeState, WhyUnsynced: c.Sources.WhyUnsynced, NodeInfo: c.nodeInfo,
	}
	return podops.New(podops.Config{
		Pods: pods.Pods, PodCache: c.PodCache, Runtime: c.Runtime, Logs: logs, CheckpointsDir: c.path("checkpoints"),
		Workers: struct {
			podworkers.Evictor
			podworkers.Recreator
		}{c.evictor(), podworkers.Recreator{Workers: c.PodWorkers}},
	})
}

// runtimeHealthy returns what is wrong with the runtime and is not said by the loop.
func (c *Components) runtimeHealthy() error {
	return syncloop.RuntimeHealth(c.SyncLoop.Healthy(), c.RuntimeState.Healthy())
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
	return status.NodeInfo{HostIPs: c.Node.HostIPs(), RuntimeName: c.RuntimeState.Name(), Handlers: c.RuntimeState.Status().Handlers, RunsPods: runtime.RunsPods(c.Runtime)}
}

// podKiller requests the termination of a pod from the workers, which are built later.
type podKiller struct{ c *Components }

func (k podKiller) RequestKill(uid types.UID, t runtime.Termination) {
	k.c.PodWorkers.RequestKill(uid, podworkers.KillOptions{Termination: t})
}
