package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// imagesFile has the usage records of images, in the root directory.
const imagesFile = "images.json"

func (a *Agent) makeImageGC() (err error) {
	if a.imagePolicy == nil {
		return nil
	}
	store, _ := runtime.Capability[runtime.ImageStore](a.runtime)
	user, _ := runtime.Capability[runtime.ImageUser](a.runtime)
	fs, _ := runtime.Capability[runtime.ImageFSReporter](a.runtime)
	cfg := imagegc.Config{
		Images: imageStore{store, user, fs}, Policy: *a.imagePolicy, KeepImages: a.imageKeep, RecordsFile: a.path(imagesFile), Period: a.timing.ImageGCPeriod,
		NodeName: a.nodeName, Recorder: a.events, Logger: a.logger, Hooks: a.hooks.ImageGC,
	}
	if rt, ok := runtime.Capability[runtime.SandboxImageReporter](a.runtime); ok {
		cfg.SandboxImage = rt.SandboxImage
	}
	a.images, err = imagegc.New(cfg)
	return err
}

// leaseImages gives the pods of the previous process leases on their images until they
// have terminated or no source contains them. So none of their images is removed before
// the sources have synced, neither by the periodic collection nor for eviction.
func (a *Agent) leaseImages(ctx context.Context, previous []*corev1.Pod) error {
	if a.images == nil {
		return nil
	}
	for _, pod := range previous {
		if err := a.images.Lease(ctx, pod.UID, imagegc.ImageRefs(pod)); err != nil {
			return fmt.Errorf("lease the images of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return nil
}

func (a *Agent) releaseImages(uid types.UID) {
	if a.images != nil {
		a.images.Release(uid)
	}
}

// sourcesTimeout is how long the periodic image collection waits for sources that
// are not synced. New pods may need images that no pod has used before; the disk of a
// node whose server stays away must not fill up for it.
const sourcesTimeout = 2 * time.Minute

// afterAdoption runs the periodic image collection once the pods in the runtime are
// listed and the sources have synced, or sourcesTimeout has passed.
func (a *Agent) afterAdoption(ctx context.Context) error {
	startTime := time.Now()
	poll := time.NewTicker(time.Second)
	defer poll.Stop()
	for a.loop.Healthy() != nil || len(a.mux.Unsynced()) > 0 && time.Since(startTime) < sourcesTimeout {
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		}
	}
	if u := a.mux.Unsynced(); len(u) > 0 {
		a.logger.Warn("image garbage collection starts before all sources have synced", logattr.Err(u[0]))
	}
	a.adopted.Store(true)
	return a.images.Run(ctx)
}

// leasingSyncer gives pods leases on their images as long as they can start containers.
type leasingSyncer struct {
	*podsync.Syncer
	images *imagegc.Collector
}

func (l leasingSyncer) Sync(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error) {
	if err := l.images.Lease(ctx, pod.UID, imagegc.ImageRefs(pod)); err != nil {
		return runtime.SyncResult{}, fmt.Errorf("wait for an image that is being removed: %w", err)
	}
	return l.Syncer.Sync(ctx, pod, observed)
}

func (l leasingSyncer) Terminate(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, t runtime.Termination) error {
	err := l.Syncer.Terminate(ctx, pod, observed, t)
	if err == nil {
		l.images.Release(pod.UID)
	}
	return err
}

// podSyncer returns the Syncer of the workers.
func (a *Agent) podSyncer() podworkers.Syncer {
	if a.images == nil {
		return a.syncer
	}
	return leasingSyncer{a.syncer, a.images}
}
