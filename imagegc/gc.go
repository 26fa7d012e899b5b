package imagegc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// ImageStore is the image store to keep small, and who uses it. Its calls must end
// when their context does.
type ImageStore interface {
	Images(ctx context.Context) ([]runtime.Image, error)
	// RemoveImage removes an image with all its names. One that is not there is no
	// error, or one that wraps runtime.ErrNotFound.
	RemoveImage(ctx context.Context, id string) error
	// ImageFS measures the file systems that hold images, and those that hold
	// containers' layers where they are told apart. A reading without a capacity
	// is completed by Config.Measure.
	ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error)
	// ImagesInUse returns the names and ids of the images that containers were made
	// from, dead ones too: all containers of the runtime, whoever made them.
	ImagesInUse(ctx context.Context) ([]string, error)
}

// Recorder takes events. It must not block.
type Recorder interface {
	Record(*corev1.Event)
}

// Config describes a Collector. Images is required.
type Config struct {
	Images ImageStore
	Policy Policy
	// KeepImages names images that never go, in any form: that of the sandboxes where
	// the runtime does not pin it.
	KeepImages []string
	// SandboxImage asks the runtime for the image of its sandboxes, which never
	// goes; "" if it does not tell. Default: it does not.
	SandboxImage func(context.Context) (string, error)
	// RecordsFile is where ages are kept over restarts. Its folder must exist by the time
	// of Run. Default: nowhere, so that ages begin anew with each process.
	RecordsFile string
	// Period is the time between looks. Default: 5 min.
	Period time.Duration
	// DiskSettleTime is how long the file system may take to show that an image is gone.
	// Default: 1 s.
	DiskSettleTime time.Duration
	// Statfs reads the file system at a path, for runtimes that do not tell its
	// size. Default: statfs.
	Statfs func(path string) (runtime.FSUsage, error)

	NodeName string // that events are about
	Recorder Recorder
	Logger   *slog.Logger // default: discard
	Hooks    Hooks
}

// Hooks are called as the Collector works. Any may be nil. They must not block.
type Hooks struct {
	// Removed: an image is gone, or failed to go.
	Removed func(image runtime.Image, reason Reason, took time.Duration, err error)
	// Collected: a collection has ended.
	Collected func(Result, error)
	// RecordsLost: ages could not be read or saved; err says what is lost.
	RecordsLost func(err error)
}

// Result is what a collection came to.
type Result struct {
	Removed     []Decision
	BytesToFree uint64 // bytes to be freed; 0 when only ages counted, or all was to go
	BytesFreed  uint64 // bytes that the file system gained meanwhile
	Duration    time.Duration
}

// InsufficientSpaceError says that there were not enough images to remove.
type InsufficientSpaceError struct{ BytesToFree, BytesFreed uint64 }

// Error implements error.
func (e *InsufficientSpaceError) Error() string {
	return fmt.Sprintf("image collection freed %d bytes of the %d that were wanted", e.BytesFreed, e.BytesToFree)
}

// Collector removes images.
type Collector struct {
	cfg    Config
	keep   nameSet
	leases *leases

	// collectCh holds one token: whoever has it may collect, and owns what follows.
	collectCh chan struct{}
	known     map[string]ImageRecord // nil until it was loaded
	unnamed   map[string]time.Time   // since when images have no name, by id
	loaded    bool
}

// New returns a Collector. It touches neither the runtime nor the disk.
func New(cfg Config) (*Collector, error) {
	var errs []error
	if cfg.Images == nil {
		errs = append(errs, errors.New("imagegc: nil Images"))
	}
	p := &cfg.Policy
	p.HighThresholdPercent, p.LowThresholdPercent = orElse(p.HighThresholdPercent, 85), orElse(p.LowThresholdPercent, 80)
	if p.HighThresholdPercent < 0 || p.LowThresholdPercent < 0 || p.LowThresholdPercent >= p.HighThresholdPercent {
		errs = append(errs, fmt.Errorf("imagegc: low threshold %d %% is not below the high one, %d %%", p.LowThresholdPercent, p.HighThresholdPercent))
	}
	p.MinAge = orElse(p.MinAge, 2*time.Minute)
	if p.MaxAge < 0 || p.MaxAge > 0 && p.MaxAge <= p.MinAge {
		errs = append(errs, fmt.Errorf("imagegc: maximum age %v is not above the minimum, %v", p.MaxAge, p.MinAge))
	}
	cfg.Period, cfg.DiskSettleTime = orElse(cfg.Period, 5*time.Minute), orElse(cfg.DiskSettleTime, time.Second)
	if cfg.Period < 0 || cfg.DiskSettleTime < 0 {
		errs = append(errs, errors.New("imagegc: negative Period or Settle"))
	}
	if cfg.Statfs == nil {
		cfg.Statfs = statfs
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = safe.Hooks(cfg.Logger, cfg.Hooks)
	cfg.Recorder = safe.Events(cfg.Logger, cfg.Recorder)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c := &Collector{cfg: cfg, keep: make(nameSet), leases: newLeases(), collectCh: make(chan struct{}, 1)}
	for _, ref := range cfg.KeepImages {
		c.keep.add(ref)
	}
	return c, nil
}

func orElse[T int | time.Duration](v, fallback T) T {
	if v == 0 {
		return fallback
	}
	return v
}

// Run looks after the images at once and then each Period, until ctx is done;
// then it saves the ages and returns nil. A collection that fails is reported
// and tried again at the next look.
func (c *Collector) Run(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.Period)
	defer tick.Stop()
	for {
		if err := safe.Call(c.cfg.Logger, "collect images", func() error { _, err := c.Collect(ctx); return err }); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("image collection failed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			c.collectCh <- struct{}{}
			c.save()
			<-c.collectCh
			return nil
		case <-tick.C:
		}
	}
}

// Collect looks once: it removes images over their age, and if the disk is at
// the high threshold as many as it takes to get to the low one. If that is not
// to be had the error is a *ShortError.
func (c *Collector) Collect(ctx context.Context) (Result, error) {
	return c.collect(ctx, false)
}

// DeleteUnused removes every image that may go, however full the disk is.
func (c *Collector) DeleteUnused(ctx context.Context) (Result, error) {
	return c.collect(ctx, true)
}

// Reclaim is DeleteUnused for who only needs to know whether it failed. It makes
// a Collector an eviction.Reclaimer.
func (c *Collector) Reclaim(ctx context.Context) error {
	_, err := c.DeleteUnused(ctx)
	return err
}

// Explain says what a collection would do now, and why, without doing it. Which
// images go for the disk's sake is estimated from their sizes.
func (c *Collector) Explain(ctx context.Context, all bool) ([]Decision, error) {
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer func() { <-c.collectCh }()
	look, err := c.takeSnapshot(ctx, all)
	if err != nil {
		return nil, err
	}
	return Plan(look.images, look.state, c.cfg.Policy, look.at), nil
}

func (c *Collector) acquire(ctx context.Context) error {
	select {
	case c.collectCh <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// event tells about the node.
func (c *Collector) event(reason, message string) {
	if c.cfg.Recorder == nil {
		return
	}
	c.cfg.Recorder.Record(podspec.NewNodeEvent(c.cfg.NodeName, corev1.EventTypeWarning, reason, message, time.Now()))
}
