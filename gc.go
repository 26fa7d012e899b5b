package agent

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/run"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/volume"
)

// gcState has the components that reclaim resources of the node. One that no option asks
// for, or that the runtime lacks the capability for, is nil.
type gcState struct {
	adopted    atomic.Bool // the runtime is connected, and every pod has a lease on its images
	volumes    *volume.Manager
	groups     *cgroup.Manager
	usage      *stats.Provider
	images     *imagegc.Collector
	containers *containergc.Collector
	logs       *containergc.Rotator
	eviction   *eviction.Manager
}

// reclaimParts is the stage that runs them. It stops before the workers do.
func (a *Agent) reclaimParts() []run.Component {
	var parts []run.Component
	if a.images != nil {
		parts = append(parts, run.Component{Name: "imagegc", Run: a.afterAdoption})
	}
	if a.containers != nil {
		parts = append(parts, run.Component{Name: "containergc", Run: a.containers.Run})
	}
	if a.logs != nil {
		parts = append(parts, run.Component{Name: "log rotation", Run: a.logs.Run})
	}
	parts = append(parts, run.Component{Name: "stats", Run: a.usage.Run})
	if a.eviction != nil {
		parts = append(parts, run.Component{Name: "eviction", Run: a.eviction.Run})
	}
	return parts
}

// cachedPods returns the observed pods from memory, so that garbage collection costs the
// runtime no call. An exited container stays exited: an old state only removes it later.
type cachedPods struct{ a *Agent }

func (s cachedPods) Pods(context.Context) ([]runtime.Pod, error) { return s.a.cache.Pods(), nil }

func (a *Agent) makeContainerGC() (err error) {
	rt, ok := runtime.Capability[runtime.ContainerRemover](a.runtime)
	if !ok {
		return nil
	}
	a.containers, err = containergc.New(containergc.Config{
		Containers: struct {
			runtime.ContainerRemover
			cachedPods
		}{rt, cachedPods{a}},
		PodState: a.podState, Policy: a.containerGCPolicy, LogsDir: a.node.PodLogsDir, LinksDir: a.node.LogLinksDir, Owner: a.ownerID,
		Logger: a.logger, Hooks: a.hooks.ContainerGC,
	})
	return err
}

func (a *Agent) makeLogRotation() (err error) {
	rt, ok := runtime.Capability[runtime.LogReopener](a.runtime)
	if !ok || a.rotation.MaxSize < 0 {
		return nil
	}
	a.logs, err = containergc.NewRotator(containergc.RotatorConfig{
		Runtime: struct {
			runtime.LogReopener
			cachedPods
		}{rt, cachedPods{a}},
		LogsDir: a.node.PodLogsDir, MaxSize: a.rotation.MaxSize, MaxFiles: a.rotation.MaxFiles, Logger: a.logger,
	})
	return err
}

// onFinished starts the cleanup of a pod that has finished.
func (a *Agent) onFinished(uid types.UID) {
	a.loop.PodFinished(uid)
	a.releaseImages(uid)
	if a.containers != nil {
		a.containers.RequestCollection()
	}
}

// onIdle requests a collection when a crashing pod has more exited containers than the
// policy keeps.
func (a *Agent) onIdle(uid types.UID) {
	a.pleg.MarkIdle(uid)
	if a.containers == nil || a.containerGCPolicy.MaxPerPodContainer == containergc.KeepAll {
		return
	}
	p, _ := a.cache.Get(uid)
	desired := func(types.UID) containergc.PodState { return containergc.PodDesired }
	if len(containergc.Plan([]runtime.Pod{p}, desired, a.containerGCPolicy, false, time.Now())) > 0 {
		a.containers.RequestCollection()
	}
}

// podState returns what can be removed of a pod. The sources are read first: a deleted
// pod is missing there before its worker has finished.
func (a *Agent) podState(uid types.UID) containergc.PodState {
	_, desired := a.mux.Pod(uid)
	st, known := a.workers.State(uid)
	switch {
	case known && !st.Idle, desired && !known:
		return containergc.PodDesired
	case desired:
		return containergc.PodTerminated
	case known:
		return containergc.PodDeleted
	case !a.workers.ShouldPodContentBeRemoved(uid): // not all sources have synced
		return containergc.PodDesired
	}
	if p, ok := a.cache.Get(uid); ok && len(p.Sandboxes) > 0 && a.mux.MayBeDesired(p.Sandboxes[0].Source, p.Namespace, p.Name) {
		return containergc.PodDesired
	}
	return containergc.PodDeleted
}
