package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/stats"
)

// WithEviction evicts pods when the node runs short of memory, disk or process ids, and
// pods that exceed their limits on local storage. New pods are rejected meanwhile. The
// zero Config has the kubelet's defaults. Default: no evictions.
//
// Pods, NodeName, Recorder and Logger are the agent's and must not be set. Reclaimers of
// c are called before the agent's own. Without c.Usage the agent measures the machine or
// NodeConfig.NodeCgroup, with the notifiers of the kernel before those of c.
func WithEviction(c eviction.Config) Option {
	return func(s *settings) error {
		err := c.Check()
		if c.Pods != nil || c.NodeName != "" || c.Recorder != nil || c.Logger != nil {
			err = errors.Join(err, errors.New("eviction: Pods, NodeName, Recorder and Logger are the agent's; remove them"))
		}
		cfg := c
		cfg.Thresholds, cfg.Reclaimers, cfg.Notifiers = slices.Clone(c.Thresholds), slices.Clone(c.Reclaimers), slices.Clone(c.Notifiers)
		s.evict = &cfg
		return errors.Join(err, s.once("eviction"))
	}
}

// WithImageGC removes images that no pod needs. keep names images that are never
// removed, such as that of the sandboxes if the runtime neither pins nor reports it.
// Default: no image is removed, because other clients of the runtime may use them.
func WithImageGC(p imagegc.Policy, keep ...string) Option {
	return func(s *settings) error {
		if _, err := imagegc.New(imagegc.Config{Images: new(cri.Client), Policy: p}); err != nil {
			return err
		}
		s.imagePolicy, s.imageKeep = &p, keep
		return s.once("image collection")
	}
}

// WithContainerGC sets how many exited containers are kept. Default: the last one of
// each name, as long as its pod is desired.
func WithContainerGC(p containergc.Policy) Option {
	return func(s *settings) error {
		if p.MinAge < 0 || p.MaxContainers < 0 || p.MaxPerPodContainer < containergc.KeepUntilReplaced {
			return fmt.Errorf("container collection: negative MinAge or MaxContainers, or invalid MaxPerPodContainer, in %+v", p)
		}
		s.containerGCPolicy = p
		return s.once("container collection")
	}
}

// LogRotation bounds the logs of running containers.
type LogRotation struct {
	MaxSize  int64 // bytes at which a log is rotated. Default: 10 MiB; negative: never
	MaxFiles int   // files of one container, the current one included, at least 2. Default: 5
}

// WithLogRotation bounds the logs of running containers. New returns an error if the
// runtime cannot reopen logs.
func WithLogRotation(r LogRotation) Option {
	return func(s *settings) error {
		if r.MaxFiles != 0 && r.MaxFiles < 2 {
			return fmt.Errorf("log rotation: MaxFiles %d is less than 2", r.MaxFiles)
		}
		s.rotation = r
		return s.once("log rotation")
	}
}

// WithImagePulls bounds the image pulls of the client that WithRuntimeEndpoint makes.
func WithImagePulls(p cri.PullLimits) Option {
	return func(s *settings) error {
		if p.MaxParallel < 0 || p.Burst < 0 {
			return fmt.Errorf("image pulls: negative MaxParallel or Burst in %+v", p)
		}
		s.pulls = p
		return s.once("image pulls")
	}
}

// WithImageVerification sets for which images that are already on the node a pod
// needs the credentials to pull them. It is for the client that WithRuntimeEndpoint
// makes. Default: cri.NeverVerifyPreloadedImages, which verifies images that this
// agent pulled; they are recorded in its root directory. The allowlist is for
// cri.NeverVerifyAllowlistedImages.
func WithImageVerification(policy cri.ImageVerification, allowlist ...string) Option {
	return func(s *settings) error {
		s.imageAccess = cri.ImageAccess{Policy: policy, Allowlist: slices.Clone(allowlist)}
		if err := s.imageAccess.Check(); err != nil {
			return fmt.Errorf("image verification: %w", err)
		}
		return s.once("image verification")
	}
}

// InspectionErrors returns the pods that the runtime fails to inspect. They do not
// make the agent unhealthy, and other pods run on.
func (a *Agent) InspectionErrors() []pleg.InspectionError { return a.pleg.InspectionErrors() }

// Conditions returns the node's conditions MemoryPressure, DiskPressure and
// PIDPressure; none without eviction.
func (a *Agent) Conditions() []corev1.NodeCondition {
	if a.eviction == nil {
		return nil
	}
	return a.eviction.Conditions()
}

// Stats reports disk usage that is at most statsAge old. It waits statsWait for a new
// count of files; a longer one continues in the background for the next call.
const (
	statsAge  = time.Minute
	statsWait = 2 * time.Second
)

// Stats measures the node and its pods now. The usage of logs and volumes is about a
// minute old at most, and left out if it takes too long to count.
func (a *Agent) Stats(ctx context.Context) (stats.Summary, error) {
	if !a.started.Load() {
		return stats.Summary{}, errors.New("stats: agent is not running")
	}
	counting, cancel := context.WithTimeout(ctx, statsWait)
	a.usage.RefreshDiskUsage(counting, time.Now().Add(-statsAge))
	cancel()
	u, err := a.usage.Usage(ctx, time.Time{})
	if err != nil {
		return stats.Summary{}, err
	}
	return stats.Summarize(a.nodeName, a.usage.BootTime(), &u, a.Pods()), nil
}
