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

// EvictionConfig says when the node is too short of something to go on, and how pods go
// then. The zero value has the kubelet's defaults.
type EvictionConfig struct {
	// Hard, Soft, SoftGrace and MinimumReclaim are written as for the kubelet's
	// flags: see eviction.ParseThresholds. Hard defaults to eviction.DefaultHard;
	// eviction.None is for none.
	Hard, Soft, SoftGracePeriod, MinimumReclaim string
	// PressureTransitionPeriod is how long a condition holds after its last breach. Default: 5 min.
	PressureTransitionPeriod time.Duration
	// MaxPodGracePeriod bounds the grace period of pods evicted for a soft threshold. Zero
	// gives them 1 s, below zero their own.
	MaxPodGracePeriod time.Duration
	// EvictCritical has critical pods evicted too, after all others: static ones, which
	// start again with back-off once the pressure has ended, and those of a system
	// priority. Default: they never are, as with the kubelet, and neither for limits of
	// their own.
	EvictCritical bool
	// MonitoringPeriod is how often the node is looked at when neither the kernel tells of
	// anything nor a threshold could be crossed sooner. Default: 10 s.
	MonitoringPeriod time.Duration
	// NodeCgroup is a cgroup, as a path below the hierarchies' roots, whose memory and
	// process limits are the node's, and below which all pods are: that of the
	// container or slice that the agent was given. Default: the machine.
	NodeCgroup string
	// UsageProvider measures in the place of the machine that the agent runs on, whose
	// kernel's notices are not listened to then.
	UsageProvider eviction.UsageProvider
	Notifiers     []eviction.ThresholdNotifier // further ones
}

// WithEviction has pods ended when the node runs short of memory, disk or process
// ids, and pods that use more local storage than their limits say. New pods are
// refused meanwhile. Without it the node is left to look after itself.
func WithEviction(e EvictionConfig) Option {
	return func(s *settings) error {
		hard := e.Hard
		if hard == "" {
			hard = eviction.DefaultHardThresholds
		}
		_, err := eviction.ParseThresholds(hard, e.Soft, e.SoftGracePeriod, e.MinimumReclaim)
		if err == nil && e.PressureTransitionPeriod < 0 {
			err = fmt.Errorf("transition %v is negative", e.PressureTransitionPeriod)
		}
		if err == nil && e.MonitoringPeriod < 0 {
			err = fmt.Errorf("poll %v is negative", e.MonitoringPeriod)
		}
		if err == nil && e.NodeCgroup != "" && e.UsageProvider != nil {
			err = errors.New("bound is for the machine's own figures, and a Node measures in their place")
		}
		if err != nil {
			return fmt.Errorf("eviction: %w", err)
		}
		s.evict = &e
		return s.once("eviction")
	}
}

// WithImageGC has images removed that no pod needs. keep names images that never
// go, as that of the sandboxes where the runtime neither pins it nor tells which it
// is. Without it none is removed: a runtime's images may be of use to others.
func WithImageGC(p imagegc.Policy, keep ...string) Option {
	return func(s *settings) error {
		if _, err := imagegc.New(imagegc.Config{Images: new(lazyRuntime), Policy: p}); err != nil {
			return err
		}
		s.imagePolicy, s.imageKeep = &p, keep
		return s.once("image collection")
	}
}

// WithContainerGC sets how much of what is dead is kept. Default: the last dead
// container of each name, as long as its pod is wanted.
func WithContainerGC(p containergc.Policy) Option {
	return func(s *settings) error {
		if p.MinAge < 0 || p.MaxContainers < 0 || p.MaxPerPodContainer < containergc.KeepUntilReplaced {
			return fmt.Errorf("container collection: negative MinAge or PerNode, or a PerContainer without a meaning, in %+v", p)
		}
		s.containerGCPolicy = p
		return s.once("container collection")
	}
}

// LogRotation says how long the logs of running containers may get.
type LogRotation struct {
	MaxSize  int64 // bytes at which a log is rotated; default 10 MiB, below zero never
	MaxFiles int   // of one container, the current one included; default 5, at least 2
}

// WithLogRotation sets how long logs may get. It needs a runtime that can reopen
// them.
func WithLogRotation(r LogRotation) Option {
	return func(s *settings) error {
		if r.MaxFiles != 0 && r.MaxFiles < 2 {
			return fmt.Errorf("log rotation: MaxFiles %d is less than 2", r.MaxFiles)
		}
		s.rotation = r
		return s.once("log rotation")
	}
}

// WithImagePulls bounds image pulls of the runtime that the agent itself connects
// to.
func WithImagePulls(p cri.PullLimits) Option {
	return func(s *settings) error {
		if p.MaxParallel < 0 || p.Burst < 0 {
			return fmt.Errorf("image pulls: negative AtOnce or Burst in %+v", p)
		}
		s.pulls = p
		return s.once("image pulls")
	}
}

// WithImageVerification sets for which images that are on the node a pod has to have
// the credentials to pull them, in the runtime that the agent itself connects to.
// The default is cri.NeverVerifyPreloadedImages: those that this agent pulled, which
// it remembers in its root directory. The allowlist is for
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

// InspectionErrors returns the pods that the runtime does not let the agent look at. They
// leave the agent healthy: one that hangs keeps no other from running.
func (a *Agent) InspectionErrors() []pleg.InspectionError { return a.pleg.InspectionErrors() }

// Conditions returns the node's conditions MemoryPressure, DiskPressure and
// PIDPressure; none without eviction.
func (a *Agent) Conditions() []corev1.NodeCondition {
	if a.eviction == nil {
		return nil
	}
	return a.eviction.Conditions()
}

// How new the counts of files are that Stats tells, and how long it waits for
// them: what takes longer is counted on in the background, and told next time.
const (
	statsAge  = time.Minute
	statsWait = 2 * time.Second
)

// Stats measures the node and its pods now. What logs and volumes take up is at
// most about a minute old, and left out where it takes too long to count.
func (a *Agent) Stats(ctx context.Context) (stats.Summary, error) {
	if !a.started.Load() {
		return stats.Summary{}, errors.New("stats: the agent does not run")
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
