package main

import (
	"flag"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/kubeletconfig"
)

// list is a flag that may be given several times, as with the kubelet: the first
// value replaces the default, and further ones are appended.
type list struct {
	text  string
	given bool
}

// String implements flag.Value.
func (l *list) String() string { return l.text }

// Set implements flag.Value.
func (l *list) Set(s string) error {
	if l.given && l.text != "" {
		s = l.text + "," + s
	}
	l.text, l.given = s, true
	return nil
}

// reclaimFlags are about eviction and garbage collection, with the kubelet's names and defaults.
type reclaimFlags struct {
	evictionHard, evictionSoft, evictionSoftGrace, evictionMinReclaim list

	evictionTransition  time.Duration
	evictionMaxPodGrace int
	evictCritical       bool
	imageHigh, imageLow int
	imageMinAge         time.Duration
	imageMaxAge         time.Duration
	infraImage          string
	deadPerContainer    int
	dead                int
	deadMinAge          time.Duration
	logMaxSize          string
	logMaxFiles         int
	parallelPulls       int
	registryQPS         float64
	registryBurst       int
}

func (f *reclaimFlags) define(fs *flag.FlagSet) {
	f.evictionHard.text = eviction.DefaultHardThresholds
	fs.Var(&f.evictionHard, "eviction-hard", "thresholds at which pods are evicted at once; empty or none: never")
	fs.Var(&f.evictionSoft, "eviction-soft", "thresholds at which pods are evicted after -eviction-soft-grace-period")
	fs.Var(&f.evictionSoftGrace, "eviction-soft-grace-period", "how long each soft threshold must be met: memory.available=1m30s,…")
	fs.Var(&f.evictionMinReclaim, "eviction-minimum-reclaim", "how much more than its threshold to free of a resource: memory.available=50Mi,…")
	fs.DurationVar(&f.evictionTransition, "eviction-pressure-transition-period", 5*time.Minute, "how long a condition stays true after its threshold was last met")
	fs.IntVar(&f.evictionMaxPodGrace, "eviction-max-pod-grace-period", 0, "longest grace period, in seconds, of pods evicted for a soft threshold; negative: their own")
	fs.BoolVar(&f.evictCritical, "evict-critical-pods", false, "evict critical pods too, after all others: static pods, and those of a system priority")
	fs.IntVar(&f.imageHigh, "image-gc-high-threshold", 85, "percent of the image disk in use at which unused images are removed; 100: never")
	fs.IntVar(&f.imageLow, "image-gc-low-threshold", 80, "percent of the image disk in use down to which they are removed")
	fs.DurationVar(&f.imageMinAge, "minimum-image-ttl-duration", 2*time.Minute, "minimum age of an image that is removed")
	fs.DurationVar(&f.imageMaxAge, "maximum-image-ttl-duration", 0, "how long an image may be unused; 0: indefinitely")
	fs.StringVar(&f.infraImage, "pod-infra-container-image", "", "image of the runtime's sandboxes, never removed; needed if the runtime neither pins nor reports it")
	fs.IntVar(&f.deadPerContainer, "maximum-dead-containers-per-container", 1, "exited containers to keep of each container; 0: only one on which a restart depends; negative: all")
	fs.IntVar(&f.dead, "maximum-dead-containers", -1, "exited containers to keep on the node; negative: no limit")
	fs.DurationVar(&f.deadMinAge, "minimum-container-ttl-duration", 0, "minimum age of an exited container that is removed")
	fs.StringVar(&f.logMaxSize, "container-log-max-size", "10Mi", "size at which a container's log is rotated; negative: never")
	fs.IntVar(&f.logMaxFiles, "container-log-max-files", 5, "log files to keep of a container, at least 2")
	fs.IntVar(&f.parallelPulls, "max-parallel-image-pulls", 2, "images pulled in parallel")
	fs.Float64Var(&f.registryQPS, "registry-qps", 5, "image pulls per second; 0: no limit")
	fs.IntVar(&f.registryBurst, "registry-burst", 10, "burst of image pulls above -registry-qps")
}

func (f *reclaimFlags) check(fail func(bad bool, format string, args ...any)) {
	if _, err := f.thresholds(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fail(true, "-%s", line)
		}
	}
	fail(f.evictionTransition <= 0, "-eviction-pressure-transition-period %v: must be positive", f.evictionTransition)
	fail(f.imageHigh < 1 || f.imageHigh > 100, "-image-gc-high-threshold %d: must be from 1 to 100", f.imageHigh)
	fail(f.imageLow < 0 || f.imageLow >= f.imageHigh, "-image-gc-low-threshold %d: must be from 0 to below -image-gc-high-threshold", f.imageLow)
	fail(f.imageMinAge < 0, "-minimum-image-ttl-duration %v: must not be negative", f.imageMinAge)
	fail(f.imageMaxAge < 0 || f.imageMaxAge > 0 && f.imageMaxAge <= f.imageMinAge,
		"-maximum-image-ttl-duration %v: must be 0 or above -minimum-image-ttl-duration", f.imageMaxAge)
	fail(f.deadMinAge < 0, "-minimum-container-ttl-duration %v: must not be negative", f.deadMinAge)
	size, err := resource.ParseQuantity(f.logMaxSize)
	fail(err != nil || size.IsZero(), "-container-log-max-size %q: must be a size such as 10Mi, or negative", f.logMaxSize)
	fail(f.logMaxFiles < 2, "-container-log-max-files %d: must be at least 2", f.logMaxFiles)
	fail(f.parallelPulls < 1, "-max-parallel-image-pulls %d: must be at least 1", f.parallelPulls)
	fail(f.registryQPS < 0, "-registry-qps %v: must not be negative", f.registryQPS)
	fail(f.registryBurst < 1, "-registry-burst %d: must be at least 1", f.registryBurst)
}

// thresholds parses the thresholds of eviction. Their errors name the flags.
func (f *reclaimFlags) thresholds() ([]eviction.Threshold, error) {
	return eviction.ParseThresholds(f.evictionHard.text, f.evictionSoft.text, f.evictionSoftGrace.text, f.evictionMinReclaim.text)
}

// options adds to the Configs of components what flags alone have. Where 0 is a value for
// the kubelet and the default here, another value stands for it.
func (f *reclaimFlags) options(s *kubeletconfig.Settings) []agent.Option {
	s.Eviction.EvictCritical = f.evictCritical
	if f.infraImage != "" {
		s.ImageGC.KeepImages = []string{f.infraImage}
	}
	return []agent.Option{
		agent.WithConfig(s.Eviction),
		agent.WithConfig(s.ImageGC),
		agent.WithConfig(containergc.Config{Policy: containergc.Policy{
			MinAge: f.deadMinAge, MaxPerPodContainer: orOff(max(f.deadPerContainer, containergc.KeepAll), containergc.KeepUntilReplaced), MaxContainers: max(orOff(f.dead, 1), 0),
		}}),
		agent.WithConfig(s.LogRotation),
	}
}

func orOff(v, off int) int {
	if v == 0 {
		return off
	}
	return v
}
