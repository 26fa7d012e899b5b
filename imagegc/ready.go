package imagegc

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
)

// ErrNotReady is returned by Explain before the images that pods need are known.
var ErrNotReady = errors.New("image garbage collection is not ready: running pods are not adopted yet")

// readyPollInterval is the interval between calls of Config.Ready and Unsynced.
const readyPollInterval = time.Second

// Restore gives the pods of the previous process leases on their images, until Release.
// It must be called before Run. So none of their images is removed before the sources
// have synced, neither by Run nor by Reclaim.
func (c *Collector) Restore(pods ...*corev1.Pod) {
	for _, pod := range pods {
		c.leases.acquire(pod.UID, ImageRefs(pod)) // there are no removals to wait for
	}
}

// awaitPods waits until the images that pods need are known, or ctx is done.
func (c *Collector) awaitPods(ctx context.Context) {
	startTime := time.Now()
	poll := time.NewTicker(readyPollInterval)
	defer poll.Stop()
	for {
		if c.check(c.cfg.Ready) == nil {
			unsynced := c.check(c.cfg.Unsynced)
			if unsynced == nil {
				break
			}
			if time.Since(startTime) >= c.cfg.SourcesTimeout {
				c.cfg.Logger.Warn("image garbage collection starts before all sources have synced", logattr.Err(unsynced))
				break
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
	}
	c.ready.Store(true)
}

// check returns the result of f, or nil if f is nil.
func (c *Collector) check(f func() error) error {
	if f == nil {
		return nil
	}
	return safe.Call(c.cfg.Logger, "check whether images can be collected", f)
}
