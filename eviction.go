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
	cfg := stats.Config{Pods: a.measuredPods, TrackedPods: a.watched, NodeFS: a.rootDir, Logger: a.logger}
	if a.boundsPods() {
		cfg.FindPodsCgroup = a.groups.PodsCgroup
	}
	if a.evict != nil {
		cfg.NodeCgroup = a.evict.NodeCgroup
	}
	if rt, ok := runtime.Capability[runtime.ContainerStatsReporter](a.runtime); ok {
		cfg.ContainerStats = rt
	}
	if rt, ok := runtime.Capability[runtime.ImageFSReporter](a.runtime); ok {
		cfg.ImageFS = a.imageDirs(rt)
	}
	a.usage, err = stats.New(cfg)
	return err
}

func (a *Agent) makeEviction() (err error) {
	if a.evict == nil {
		return nil
	}
	cfg := eviction.Config{
		Usage: a.evict.UsageProvider, Pods: evictionPods{a}, Notifiers: a.evict.Notifiers,
		Hard: a.evict.Hard, Soft: a.evict.Soft, SoftGracePeriod: a.evict.SoftGracePeriod, MinimumReclaim: a.evict.MinimumReclaim,
		PressureTransitionPeriod: a.evict.PressureTransitionPeriod, MaxPodGracePeriod: a.evict.MaxPodGracePeriod, MonitoringPeriod: a.evict.MonitoringPeriod,
		EvictCritical: a.evict.EvictCritical, NodeName: a.nodeName, PodCleanupTimeout: a.evict.PodCleanupTimeout,
		Recorder: a.events, Logger: a.logger, Hooks: a.hooks.Eviction,
	}
	if cfg.Usage == nil {
		cfg.Usage = a.usage
		if a.boundsPods() {
			cfg.Hard, cfg.MinimumReclaim = allocatableThresholds(cfg.Hard, cfg.MinimumReclaim)
		}
		notices, err := a.kernelNotices()
		if err != nil {
			return err
		}
		cfg.Notifiers = append(notices, cfg.Notifiers...)
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

// underPressure reports whether the node is short of anything for which it evicts.
func (a *Agent) underPressure() bool {
	return a.eviction != nil && slices.ContainsFunc(a.eviction.Conditions(), func(c corev1.NodeCondition) bool { return c.Status == corev1.ConditionTrue })
}

// Where the kernel's files are.
const (
	cgroupMount    = "/sys/fs/cgroup"
	memoryV1       = cgroupMount + "/memory"
	memoryPressure = "/proc/pressure/memory"
)

// kernelNotices are all that a kernel may have; those that this one does not have
// end by themselves.
func (a *Agent) kernelNotices() ([]eviction.ThresholdNotifier, error) {
	bound := func() string { return filepath.Join("/", a.evict.NodeCgroup) }
	usage, err := eviction.NewMemoryThresholdNotifier(memoryV1, bound, eviction.MemoryAvailable)
	if err != nil {
		return nil, err
	}
	notices := []eviction.ThresholdNotifier{usage, eviction.PSINotifier{Path: memoryPressure}}
	if a.evict.NodeCgroup != "" {
		notices = append(notices, eventsOf(bound))
	}
	if a.boundsPods() {
		all, err := eviction.NewMemoryThresholdNotifier(memoryV1, a.groups.PodsCgroup, eviction.AllocatableMemoryAvailable)
		if err != nil {
			return nil, err
		}
		notices = append(notices, all, eventsOf(a.groups.PodsCgroup))
	}
	return notices, nil
}

// boundsPods reports whether all pods together are held to what the node has for
// them.
func (a *Agent) boundsPods() bool {
	limits := a.node.podsCgroupLimits()
	return a.groups != nil && !limits.Memory().IsZero()
}

// allocatableThresholds adds to a hard threshold on the node's memory the same one on that of
// all pods, which would be killed at their limit before the node was short. The
// lists were checked.
func allocatableThresholds(hard, reclaim string) (hards, reclaims string) {
	if hard == "" {
		hard = eviction.DefaultHardThresholds
	}
	list, _ := eviction.ParseThresholds(hard, "", "", reclaim)
	same := eviction.Threshold{}
	for _, t := range list {
		if t.Signal == eviction.AllocatableMemoryAvailable {
			return hard, reclaim
		}
		if t.Signal == eviction.MemoryAvailable {
			same = t
		}
	}
	if same.Signal == "" {
		return hard, reclaim
	}
	same.Signal = eviction.AllocatableMemoryAvailable
	if !same.MinReclaim.IsZero() && !strings.Contains(reclaim, string(same.Signal)) {
		reclaim += fmt.Sprintf(",%s=%s", same.Signal, same.MinReclaim)
	}
	return hard + "," + same.String(), reclaim
}

// cgroupEventsNotifier tells when a group of cgroup v2 meets its own memory limit, once
// the group is there.
type cgroupEventsNotifier struct{ group func() string }

func eventsOf(group func() string) eviction.ThresholdNotifier { return cgroupEventsNotifier{group} }

// cgroupPollPeriod is how often is looked for a group that is not there yet.
const cgroupPollPeriod = 10 * time.Second

// Watch implements eviction.Notice.
func (g cgroupEventsNotifier) Watch(ctx context.Context, crossed func()) error {
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers")); err != nil {
		return fmt.Errorf("memory events: %w: there is no cgroup v2: %w", runtime.ErrUnsupported, err)
	}
	poll := time.NewTicker(cgroupPollPeriod)
	defer poll.Stop()
	for {
		path := filepath.Join(cgroupMount, g.group(), "memory.events.local")
		if _, err := os.Stat(path); err == nil {
			return eviction.MemoryEventsNotifier{Path: path}.Watch(ctx, crossed)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		}
	}
}

// evictionPods are the pods as eviction sees them.
type evictionPods struct{ a *Agent }

func (e evictionPods) ActivePods() []*corev1.Pod { return e.a.active() }

// active are the pods that may have containers.
func (a *Agent) active() []*corev1.Pod {
	var active []*corev1.Pod
	for _, pod := range a.statuses.Pods() {
		if st, ok := a.workers.State(pod.UID); ok && st.Phase < podworkers.Terminated {
			active = append(active, pod)
		}
	}
	return active
}

func (e evictionPods) Evict(ctx context.Context, pod *corev1.Pod, end runtime.Termination) error {
	err := e.a.workers.Kill(ctx, pod.UID, podworkers.KillOptions{
		GracePeriod: end.GracePeriod, Reason: end.Reason, Message: end.Message, Evicted: true, WaitUntilFinished: true,
	})
	if errors.Is(err, runtime.ErrNotFound) {
		return nil // it went by itself
	}
	return err
}

// measuredPods are the active pods and where their things are.
func (a *Agent) measuredPods() []stats.Pod { return a.podPaths(a.active()) }

// watched are the pods that are held to their local storage limits.
func (a *Agent) watched() []stats.Pod {
	if a.eviction == nil {
		return nil
	}
	return a.podPaths(slices.DeleteFunc(a.active(), func(pod *corev1.Pod) bool { return !eviction.HasLocalStorageLimit(pod) }))
}

// podPaths are where the pods' things are.
func (a *Agent) podPaths(active []*corev1.Pod) []stats.Pod {
	pods := make([]stats.Pod, 0, len(active))
	for _, pod := range active {
		p := stats.Pod{Pod: pod, Volumes: map[string]stats.Volume{}}
		if a.groups != nil {
			p.Cgroup = a.groups.PodCgroup(pod)
		}
		if dir, err := a.syncer.LogDir(pod); err == nil {
			p.LogDir = dir
		}
		inMemory := map[string]bool{}
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			inMemory[v.Name] = v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory
		}
		p.Files = a.syncer.WrittenFiles(pod)
		for name, path := range a.volumes.LocalVolumePaths(pod) {
			p.Volumes[name] = stats.Volume{Path: path, InMemory: inMemory[name]}
		}
		pods = append(pods, p)
	}
	return pods
}

// imageDirs asks the runtime where images and writable layers are.
func (a *Agent) imageDirs(rt runtime.ImageFSReporter) func(context.Context) (images, containers string, err error) {
	return func(ctx context.Context) (images, containers string, err error) {
		im, co, err := rt.ImageFS(ctx)
		if err != nil {
			return "", "", err
		}
		if len(im) == 0 {
			return "", "", errors.New("runtime reports no image file system")
		}
		images = filepath.Clean(im[0].Mountpoint)
		if len(co) == 0 {
			return images, images, nil
		}
		return images, filepath.Clean(co[0].Mountpoint), nil
	}
}
