package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

// The manager finds these by assertion, so a method that is renamed on one side only
// would turn them off.
var (
	_ eviction.NodeUsageProvider  = (*stats.Provider)(nil)
	_ eviction.DiskUsageRefresher = (*stats.Provider)(nil)
)

func (a *Agent) makeUsage() (err error) {
	pods := stats.Locator{Pods: evictionPods{a}, Dirs: a.syncer, Volumes: a.volumes}
	cfg := stats.Config{NodeCgroup: a.node.NodeCgroup, NodeFS: a.rootDir, Logger: a.logger}
	if a.groups != nil {
		pods.Cgroups, cfg.PodsCgroup = a.groups, a.groups.PodsCgroup
	}
	if a.evict != nil {
		pods.IsTracked = eviction.HasLocalStorageLimit
	}
	cfg.Pods, cfg.TrackedPods = pods.All, pods.Tracked
	cfg.ContainerStats, _ = runtime.Capability[runtime.ContainerStatsReporter](a.runtime)
	cfg.ImageFS, _ = runtime.Capability[runtime.ImageFSReporter](a.runtime)
	a.usage, err = stats.New(cfg)
	return err
}

func (a *Agent) makeEviction() (err error) {
	if a.evict == nil {
		return nil
	}
	cfg := *a.evict
	cfg.Pods, cfg.NodeName, cfg.Recorder, cfg.Logger = evictionPods{a}, a.nodeName, a.events, a.logger
	cfg.Hooks = a.observersAfter(Hooks{Eviction: cfg.Hooks}).Eviction
	if cfg.Usage == nil {
		kernel := eviction.KernelConfig{NodeCgroup: a.node.NodeCgroup}
		if a.groups != nil {
			kernel.PodsCgroup = a.groups.PodsCgroup
		}
		cfg.Usage, cfg.Notifiers = a.usage, append(eviction.KernelNotifiers(kernel), cfg.Notifiers...)
	}
	if a.containers != nil {
		cfg.Reclaimers = append(cfg.Reclaimers, a.containers)
	}
	if a.images != nil {
		cfg.Reclaimers = append(cfg.Reclaimers, a.images)
	}
	if a.eviction, err = eviction.New(cfg); err != nil {
		return err
	}
	a.admit = append(a.admit, a.eviction)
	return nil
}

func (a *Agent) underPressure() bool { return a.eviction != nil && a.eviction.UnderPressure() }

// evictionPods are the pods as eviction and stats use them.
type evictionPods struct{ a *Agent }

// ActivePods returns the pods that may have containers.
func (e evictionPods) ActivePods() []*corev1.Pod {
	var active []*corev1.Pod
	for _, pod := range e.a.statuses.Pods() {
		if st, ok := e.a.workers.State(pod.UID); ok && st.Phase < podworkers.Terminated {
			active = append(active, pod)
		}
	}
	return active
}

func (e evictionPods) Evict(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	return e.a.workers.Kill(ctx, pod.UID, podworkers.KillOptions{Termination: t, WaitUntilFinished: true})
}
