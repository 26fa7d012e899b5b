package agent

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/run"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/volume"
)

// imagesFile has the usage records of images, in the root directory.
const imagesFile = "images.json"

// gcState has the components that reclaim resources of the node. One that no option asks
// for, or that the runtime lacks the capability for, is nil.
type gcState struct {
	volumes    *volume.Manager
	groups     *cgroup.Manager
	usage      *stats.Provider
	images     *imagegc.Collector
	containers *containergc.Collector
	logs       *logrotate.Rotator
	eviction   *eviction.Manager
}

// reclaimParts is the stage that runs them. It stops before the workers do.
func (a *Agent) reclaimParts() []run.Component {
	var parts []run.Component
	if a.images != nil {
		parts = append(parts, run.Component{Name: "imagegc", Run: a.images.Run})
	}
	if a.containers != nil {
		parts = append(parts, run.Component{Name: "containergc", Run: a.containers.Run})
	}
	if a.logs != nil {
		parts = append(parts, run.Component{Name: "logrotate", Run: a.logs.Run})
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
		PodState: containergc.PodStates{Sources: a.mux, Workers: a.workers, Cache: &a.cache}.State,
		Policy:   a.containerGCPolicy, LogsDir: a.node.PodLogsDir, LinksDir: a.node.LogLinksDir, Owner: a.ownerID,
		Logger: a.logger, Hooks: a.hooks.ContainerGC,
	})
	return err
}

func (a *Agent) makeLogRotation() (err error) {
	rt, ok := runtime.Capability[runtime.LogReopener](a.runtime)
	if !ok || a.rotation.MaxSize < 0 {
		return nil
	}
	a.logs, err = logrotate.New(logrotate.Config{
		Runtime: struct {
			runtime.LogReopener
			cachedPods
		}{rt, cachedPods{a}},
		LogsDir: a.node.PodLogsDir, MaxSize: a.rotation.MaxSize, MaxFiles: a.rotation.MaxFiles, Logger: a.logger, Hooks: a.hooks.LogRotation,
	})
	return err
}

func (a *Agent) makeImageGC() (err error) {
	if a.imagePolicy == nil {
		return nil
	}
	store, _ := runtime.Capability[runtime.ImageStore](a.runtime)
	user, _ := runtime.Capability[runtime.ImageUser](a.runtime)
	fs, _ := runtime.Capability[runtime.ImageFSReporter](a.runtime)
	cfg := imagegc.Config{
		Images: imageStore{store, user, fs}, Policy: *a.imagePolicy, KeepImages: a.imageKeep, RecordsFile: a.path(imagesFile), Period: a.timing.ImageGCPeriod,
		Ready: func() error { return a.loop.Healthy() }, Unsynced: a.mux.FirstUnsynced,
		NodeName: a.nodeName, Recorder: a.events, Logger: a.logger, Hooks: a.hooks.ImageGC,
	}
	if rt, ok := runtime.Capability[runtime.SandboxImageReporter](a.runtime); ok {
		cfg.SandboxImage = rt.SandboxImage
	}
	a.images, err = imagegc.New(cfg)
	return err
}

// podSyncer returns the Syncer of the workers.
func (a *Agent) podSyncer() podworkers.Syncer {
	if a.images == nil {
		return a.syncer
	}
	return imagegc.LeasingSyncer{Syncer: a.syncer, Images: a.images}
}

func (a *Agent) releaseImages(uid types.UID) {
	if a.images != nil {
		a.images.Release(uid)
	}
}

// onFinished releases what a pod that has finished does not need any more.
func (a *Agent) onFinished(uid types.UID) {
	a.releaseImages(uid)
	if a.containers != nil {
		a.containers.RequestCollection()
	}
}

// onSyncEnded is called after each sync of a pod.
func (a *Agent) onSyncEnded(_ context.Context, call podworkers.SyncCall, _ time.Duration, _ runtime.SyncResult, _ error) {
	if pod, ok := a.cache.Get(call.UID); ok && a.containers != nil {
		a.containers.RequestCollectionFor(pod)
	}
}

// ExplainImages returns what image garbage collection would do with each image now, and
// why, as imagegc.Collector.Explain. Without WithImageGC it returns nil.
func (a *Agent) ExplainImages(ctx context.Context, all bool) ([]imagegc.Decision, error) {
	if a.images == nil {
		return nil, nil
	}
	return a.images.Explain(ctx, all)
}

// ExplainContainers returns what container garbage collection would remove now, as
// containergc.Collector.Explain.
func (a *Agent) ExplainContainers(ctx context.Context) ([]containergc.Removal, error) {
	if a.containers == nil {
		return nil, nil
	}
	return a.containers.Explain(ctx)
}
