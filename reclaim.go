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

// reclaim is what keeps the node from filling up. A part that the runtime cannot
// serve, or that nobody asked for, is nil.
type reclaim struct {
	tookUp     atomic.Bool // the runtime is there, and every pod has a lease on its images
	volumes    *volume.Manager
	groups     *cgroup.Manager
	usage      *stats.Provider
	images     *imagegc.Collector
	containers *containergc.Collector
	logs       *containergc.Rotator
	eviction   *eviction.Manager
}

// reclaimParts are the stage that runs it. It ends before the workers do.
func (a *Agent) reclaimParts() []run.Part {
	var parts []run.Part
	if a.images != nil {
		parts = append(parts, run.Part{Name: "imagegc", Run: a.afterPods})
	}
	if a.containers != nil {
		parts = append(parts, run.Part{Name: "containergc", Run: a.containers.Run})
	}
	if a.logs != nil {
		parts = append(parts, run.Part{Name: "log rotation", Run: a.logs.Run})
	}
	parts = append(parts, run.Part{Name: "stats", Run: a.usage.Run})
	if a.eviction != nil {
		parts = append(parts, run.Part{Name: "eviction", Run: a.eviction.Run})
	}
	return parts
}

// seenPods tells from memory what is in the runtime, so that looking for garbage
// costs it nothing. What is dead stays dead: a view that is late removes late.
type seenPods struct{ a *Agent }

func (s seenPods) Pods(context.Context) ([]runtime.Pod, error) { return s.a.cache.Pods(), nil }

func (a *Agent) makeContainerGC() (err error) {
	rt, ok := runtime.Capability[runtime.ContainerRemover](a.runtime)
	if !ok {
		return nil
	}
	a.containers, err = containergc.New(containergc.Config{
		Containers: struct {
			runtime.ContainerRemover
			seenPods
		}{rt, seenPods{a}},
		Standing: a.standing, Policy: a.keepDead, LogsDir: a.node.PodLogsDir, Owner: a.ownerID,
		Logger: a.logger, Hooks: a.hooks.Containers,
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
			seenPods
		}{rt, seenPods{a}},
		LogsDir: a.node.PodLogsDir, MaxSize: a.rotation.MaxSize, MaxFiles: a.rotation.MaxFiles, Logger: a.logger,
	})
	return err
}

// finished has a pod that came to its end tidied up after.
func (a *Agent) finished(uid types.UID) {
	a.loop.Ended(uid)
	a.releaseImages(uid)
	if a.containers != nil {
		a.containers.Poke()
	}
}

// turnEnded has the containers collected that a pod which keeps ending piles up.
func (a *Agent) turnEnded(uid types.UID) {
	a.pleg.Release(uid)
	if a.containers == nil || a.keepDead.PerContainer == containergc.KeepAll {
		return
	}
	p, _ := a.cache.Get(uid)
	wanted := func(types.UID) containergc.Standing { return containergc.Wanted }
	if len(containergc.Plan([]runtime.Pod{p}, wanted, a.keepDead, false, time.Now())) > 0 {
		a.containers.Poke()
	}
}

// standing says what may be removed of a pod. What is wanted is asked first: a pod
// that goes is missing there before its life ends.
func (a *Agent) standing(uid types.UID) containergc.Standing {
	_, wanted := a.mux.Pod(uid)
	st, lives := a.workers.State(uid)
	switch {
	case lives && !st.Over, wanted && !lives:
		return containergc.Wanted
	case wanted:
		return containergc.Ended
	case lives:
		return containergc.Gone
	case !a.workers.MayRemoveContent(uid): // not all sources have spoken
		return containergc.Wanted
	}
	if p, ok := a.cache.Get(uid); ok && len(p.Sandboxes) > 0 && a.mux.Holds(p.Sandboxes[0].Source, p.Namespace, p.Name) {
		return containergc.Wanted
	}
	return containergc.Gone
}
