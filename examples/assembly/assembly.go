package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/probe/grpchealth"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtimestate"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
	"github.com/sublet-dev/agent/volume"
)

// config describes an assembly.
type config struct {
	nodeName string
	rootDir  string      // absolute; exists, and is used by one assembly at a time
	owner    string      // the id in runtime, the same after each restart
	runtime  *cri.Client // outlives the assembly
	sources  []podsource.NamedSource
	sinks    []status.Sink
	images   imagegc.Policy
	evict    eviction.Config // without Usage, the node is measured; without Thresholds, as a kubelet does
	logger   *slog.Logger
}

// assembly is an agent without cgroups, user namespaces and log rotation.
type assembly struct {
	config
	cache       podcache.Cache
	state       *runtimestate.Tracker
	saved       *status.FileSink
	mux         *podsource.Mux
	pleg        *pleg.Generator
	statuses    *status.Manager
	prober      *probe.Manager
	syncer      *podsync.Syncer
	imageGC     *imagegc.Collector
	workers     *podworkers.Workers
	containerGC *containergc.Collector
	stats       *stats.Provider
	eviction    *eviction.Manager
	loop        *syncloop.Loop
}

// assemble builds the components, each after those that it is given. Closures refer to the
// components that are built later. Nothing is started and nothing is read or written.
func assemble(cfg config) (*assembly, error) {
	a := &assembly{config: cfg, state: runtimestate.New(cfg.runtime)}
	podsDir, logsDir := filepath.Join(a.rootDir, "pods"), filepath.Join(a.rootDir, "logs")
	owner := func() string { return a.owner }

	// Desired and observed state.
	var err error
	if a.saved, err = status.NewFileSink(filepath.Join(a.rootDir, "statuses")); err != nil {
		return nil, err
	}
	if a.mux, err = podsource.New(podsource.Config{NodeName: a.nodeName, Sources: a.sources, Logger: a.logger}); err != nil {
		return nil, err
	}
	if a.pleg, err = pleg.New(pleg.Config{
		Runtime: a.runtime, Cache: &a.cache, Logger: a.logger,
		Hooks: pleg.Hooks{Relisted: a.state.Relisted, Inspected: a.state.Inspected, StreamChanged: a.state.StreamChanged},
	}); err != nil {
		return nil, err
	}
	if a.statuses, err = status.New(status.Config{
		Sinks: append([]status.Sink{a.saved}, a.sinks...),
		NodeInfo: func() status.NodeInfo {
			return status.NodeInfo{RuntimeName: a.state.Name(), Handlers: a.state.Status().Handlers}
		},
		Logger: a.logger,
	}); err != nil {
		return nil, err
	}
	dial := runtime.Dialer(a.runtime)
	if a.prober, err = probe.New(probe.Config{
		PodCache: &a.cache, Execer: a.runtime, Dial: dial, GRPC: grpchealth.New(grpchealth.Config{Dial: dial}).Check, Logger: a.logger,
	}); err != nil {
		return nil, err
	}

	// What syncs a pod: its worker calls the syncer, with leases on the pod's images.
	volumes, err := volume.New(volume.Config{Root: a.rootDir, Logger: a.logger})
	if err != nil {
		return nil, err
	}
	if a.syncer, err = podsync.New(podsync.Config{
		Runtime: a.runtime, PodCache: a.pleg, Statuses: a.statuses, Probes: a.prober, Volumes: volumes, Objects: a.mux, PodKiller: a,
		NetworkReady: a.state.Network, PodsDir: podsDir, LogsDir: logsDir, Owner: owner, Node: podsync.Node{Name: a.nodeName}, Logger: a.logger,
	}); err != nil {
		return nil, err
	}
	if a.imageGC, err = imagegc.New(imagegc.Config{
		Images: a.runtime, Policy: a.images, RecordsFile: filepath.Join(a.rootDir, "images.json"), SandboxImage: a.runtime.SandboxImage,
		Ready: func() error { return a.loop.Healthy() }, Unsynced: a.mux.FirstUnsynced, NodeName: a.nodeName, Logger: a.logger,
	}); err != nil {
		return nil, err
	}
	if a.workers, err = podworkers.New(podworkers.Config{
		Syncer:    imagegc.LeasingSyncer{Syncer: a.syncer, Images: a.imageGC},
		Inspector: a.pleg, Observer: a.pleg, Hooks: podworkers.Hooks{SyncEnded: a.syncEnded, PodFinished: a.podFinished}, Logger: a.logger,
	}); err != nil {
		return nil, err
	}

	// What watches over the node.
	if a.containerGC, err = containergc.New(containergc.Config{
		Containers: a.runtime, PodState: containergc.PodStates{Sources: a.mux, Workers: a.workers, Cache: &a.cache}.State,
		LogsDir: logsDir, Owner: owner, Logger: a.logger,
	}); err != nil {
		return nil, err
	}
	evictor := podworkers.Evictor{Workers: a.workers, Statuses: a.statuses}
	pods := stats.Locator{Pods: evictor, Dirs: a.syncer, Volumes: volumes, IsTracked: eviction.HasLocalStorageLimit}
	if a.stats, err = stats.New(stats.Config{
		Pods: pods.All, TrackedPods: pods.Tracked, ContainerStats: a.runtime, NodeFS: a.rootDir, ImageFS: a.runtime, Logger: a.logger,
	}); err != nil {
		return nil, err
	}
	evict := a.evict
	evict.Pods, evict.Reclaimers, evict.NodeName, evict.Logger = evictor, []eviction.Reclaimer{a.containerGC, a.imageGC}, a.nodeName, a.logger
	if evict.Usage == nil {
		evict.Usage, evict.Notifiers = a.stats, eviction.KernelNotifiers(eviction.KernelConfig{})
	}
	if a.eviction, err = eviction.New(evict); err != nil {
		return nil, err
	}

	// What decides: the loop passes changes to the pod manager, and housekeeping to the housekeeper.
	fits, err := admission.New(admission.Config{NodeName: a.nodeName, Kernel: admission.KernelRelease()})
	if err != nil {
		return nil, err
	}
	manager, err := syncloop.NewPodManager(syncloop.PodManagerConfig{
		Workers: a.workers, Statuses: a.statuses, Probes: a.prober, Inspector: a.pleg, Admitters: []syncloop.Admitter{fits, a.eviction}, Preemptor: fits,
		Expected: func() []*corev1.Pod { return a.mux.Expected(a.statuses.Pods()) }, Reported: a.statuses.Pods, UnderPressure: a.eviction.UnderPressure,
		Hooks: syncloop.PodManagerHooks{Rejected: func(pod *corev1.Pod, _, _ string) { a.imageGC.Release(pod.UID) }}, Logger: a.logger,
	})
	if err != nil {
		return nil, err
	}
	housekeeper, err := syncloop.NewHousekeeper(syncloop.HousekeeperConfig{
		Workers: a.workers, PodManager: manager, Sources: a.mux, PodCache: &a.cache, Inspector: a.pleg, Logger: a.logger,
		Stores: syncloop.Stores(a.syncer, nil, a.statuses, a.imageGC.Release),
	})
	if err != nil {
		return nil, err
	}
	a.loop, err = syncloop.New(syncloop.Config{
		Changes: a.mux.Changes(), Handler: manager, Workers: a.workers, Events: a.pleg, Probes: a.prober, Cleaner: housekeeper,
		RuntimeState: a.state, Logger: a.logger,
	})
	return a, err
}

// RequestKill terminates a pod whose active deadline is over. It implements podsync.PodKiller.
func (a *assembly) RequestKill(uid types.UID, t runtime.Termination) {
	a.workers.RequestKill(uid, podworkers.KillOptions{Termination: t})
}

// syncEnded has the exited containers of a pod that has many removed.
func (a *assembly) syncEnded(_ context.Context, call podworkers.SyncCall, _ time.Duration, _ runtime.SyncResult, _ error) {
	if pod, ok := a.cache.Get(call.UID); ok {
		a.containerGC.RequestCollectionFor(pod)
	}
}

// podFinished has the rest of a finished pod removed.
func (a *assembly) podFinished(uid types.UID) {
	a.imageGC.Release(uid)
	a.containerGC.RequestCollection()
}
