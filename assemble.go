package agent

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/probe/grpchealth"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtimestate"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
	"github.com/sublet-dev/agent/userns"
	"github.com/sublet-dev/agent/volume"
	corev1 "k8s.io/api/core/v1"
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

// setDefaults sets what no option has set, and checks options against each other.
func (s *settings) setDefaults() error {
	var errs []error
	if s.nodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("node name: cannot read the host name: %w; set WithNodeName", err))
		}
		s.nodeName = name
	}
	switch real := s.runtime != nil || s.endpoint != ""; {
	case !real && !s.simulated:
		errs = append(errs, ErrNoRuntime)
	case real && s.simulated:
		errs = append(errs, errors.New("simulated runtime: another runtime is set; use one of them"))
	}
	if s.rootDir == "" {
		if s.runtime != nil || s.endpoint != "" {
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
	s.hooks = joinHooks(s.logger, s.observers)
	s.events = events.New(s.recorder)
	return errors.Join(errs...)
}

// assemble makes the components. None of them does any I/O before Run.
func (a *Agent) assemble() error {
	if a.runtime == nil {
		a.runtime = a.newRuntime()
	}
	if err := a.checkCapabilities(); err != nil {
		return err
	}
	a.ready = runtimestate.New(a.runtime)
	for _, make := range []func() error{
		a.makeSources, a.makePleg, a.makeStatus, a.makeProbes, a.makeSyncer,
		a.makeImageGC, a.makeWorkers, a.makeContainerGC, a.makeLogRotation, a.makeUsage, a.makeEviction,
		a.makeLoop,
	} {
		if err := make(); err != nil {
			return err // later components need the earlier ones
		}
	}
	return nil
}

func (a *Agent) makeSources() (err error) {
	a.mux, err = podsource.New(podsource.Config{
		NodeName: a.nodeName, Sources: a.sources, Recorder: a.events, Logger: a.logger, Hooks: a.hooks.Sources,
	})
	a.lookup = podspec.FirstObjects(append([]podspec.Objects{a.mux}, a.objects...)...)
	return err
}

func (a *Agent) makePleg() (err error) {
	own := pleg.Hooks{Relisted: a.ready.Relisted, Inspected: a.ready.Inspected, StreamChanged: a.ready.StreamChanged}
	a.pleg, err = pleg.New(pleg.Config{
		Runtime: a.runtime, Cache: &a.cache, Logger: a.logger, Hooks: a.observersAfter(Hooks{PLEG: own}).PLEG,
		Timeout: relistTimeout,
	})
	return err
}

func (a *Agent) makeStatus() (err error) {
	if a.saved, err = status.NewFileSink(a.path(statusesDirName)); err != nil {
		return err
	}
	a.statuses, err = status.New(status.Config{
		Sinks: append([]status.Sink{a.saved}, a.sinks...), NodeInfo: a.nodeInfo,
		Logger: a.logger, Hooks: a.hooks.Status,
	})
	return err
}

func (a *Agent) makeProbes() (err error) {
	dial := runtime.Dialer(a.runtime)
	a.probes, err = probe.New(probe.Config{
		PodCache: &a.cache, Execer: a.runtime, GRPC: grpchealth.New(grpchealth.Config{Dial: dial}).Check,
		Dial: dial, HostIP: a.hostIP(), Recorder: a.events, Logger: a.logger, Hooks: a.hooks.Probe,
	})
	return err
}

func (a *Agent) makeSyncer() error {
	volumes, err := volume.New(volume.Config{Root: a.rootDir, Allocatable: a.node.Allocatable, Logger: a.logger})
	if err != nil {
		return err
	}
	a.volumes = volumes
	cfg := podsync.Config{
		Runtime: a.runtime, PodCache: a.pleg, Statuses: a.statuses, PodKiller: podKiller{a}, Volumes: volumes, Probes: a.probes,
		Objects: a.lookup, BackOff: a.backOff, SoftAdmitters: a.softAdmitters, NetworkReady: a.ready.Network, Recorder: a.events, Logger: a.logger,
		PodsDir: a.path(podsDirName), LogsDir: a.node.PodLogsDir, Owner: a.ownerID,
		Node: podsync.Node{
			Name: a.nodeName, IPs: a.node.IPs, Allocatable: a.node.Allocatable,
			ResolvConf: a.node.ResolvConf, ClusterDNS: a.node.ClusterDNS, ClusterDomain: a.node.ClusterDomain,
		},
	}
	if cfg.UserNamespaces, err = userns.New(userns.Config{PodsDir: a.path(podsDirName), SubIDFS: os.DirFS("/etc")}); err != nil {
		return err
	}
	if !a.node.DisableCgroups {
		cgroups, err := cgroup.New(cgroup.Config{
			Parent: a.node.CgroupRoot, Driver: a.node.CgroupDriver, Allocatable: a.node.podsCgroupLimits(), PodPidsLimit: a.node.PodPidsLimit, Owner: a.ownerID, RuntimeDriver: a.cgroupDriver(), Logger: a.logger,
		})
		if err != nil {
			return err
		}
		cfg.Cgroups, a.groups = cgroups, cgroups
		a.stores = append(a.stores, syncloop.PodStore{Name: "cgroups", PodUIDs: cgroups.PodUIDs, Remove: cgroups.Remove})
	}
	if a.syncer, err = podsync.New(cfg); err != nil {
		return err
	}
	a.stores = append(a.stores, syncloop.PodStore{Name: "pod directories", PodUIDs: a.syncer.ListPodsFromDisk, Remove: a.syncer.CleanupOrphan})
	return nil
}

func (a *Agent) makeWorkers() (err error) {
	own := podworkers.Hooks{SyncEnded: a.onSyncEnded, PodFinished: a.onFinished}
	a.workers, err = podworkers.New(podworkers.Config{
		Syncer: a.podSyncer(), Inspector: a.pleg, Observer: a.pleg, ResyncPeriod: a.timing.ResyncPeriod, BackOff: a.timing.SyncBackOff, Jitter: a.timing.Jitter,
		Logger: a.logger, Hooks: a.observersAfter(Hooks{PodWorkers: own}).PodWorkers,
	})
	return err
}

func (a *Agent) makeLoop() (err error) {
	fits, err := admission.New(admission.Config{
		NodeName: a.nodeName, Allocatable: a.node.Allocatable, MaxPods: a.node.MaxPods, Labels: a.node.Labels,
		Taints: a.node.Taints, Unsupported: a.node.UnsupportedFields, AllowedUnsafeSysctls: a.node.AllowedUnsafeSysctls, Kernel: admission.KernelRelease(),
	})
	if err != nil {
		return err
	}
	a.pods, err = syncloop.NewPodManager(syncloop.PodManagerConfig{
		Workers: a.workers, Statuses: a.statuses, Admitters: append([]syncloop.Admitter{fits}, a.admit...), Probes: a.probes, Inspector: a.pleg,
		Expected: func() []*corev1.Pod { return a.mux.Expected(a.statuses.Pods()) }, UnderPressure: a.underPressure,
		Recorder: a.events, Logger: a.logger, Hooks: a.podsHooks(),
	})
	if err != nil {
		return err
	}
	housekeeper, err := syncloop.NewHousekeeper(syncloop.HousekeeperConfig{
		Workers: a.workers, PodManager: a.pods, Sources: a.mux, PodCache: &a.cache, Inspector: a.pleg,
		Stores: append(a.stores, syncloop.PodStore{Name: "statuses", PodUIDs: a.statusesKnown, Remove: a.forgetStatus}),
		Logger: a.logger, Hooks: a.hooks.Housekeeper,
	})
	if err != nil {
		return err
	}
	a.loop, err = syncloop.New(syncloop.Config{
		Changes: a.mux.Changes(), Handler: a.pods, Workers: a.workers, Events: a.pleg, Probes: a.probes, Cleaner: housekeeper,
		RuntimeState: a.ready, HousekeepingPeriod: a.timing.HousekeepingPeriod,
		Logger: a.logger, Hooks: a.hooks.SyncLoop,
	})
	return err
}
