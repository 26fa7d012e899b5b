package imagegc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// untaggedGracePeriod is how long an image without a name is kept, because its pull may
// be in progress.
const untaggedGracePeriod = time.Minute

// snapshot is the input of one plan.
type snapshot struct {
	at     time.Time
	policy Policy
	images []runtime.Image
	fs     runtime.FSUsage
	state  PlanInput
}

// takeSnapshot reads the input of a plan and updates the image records. If any part of
// it is unavailable, takeSnapshot returns an error and nothing is removed.
func (c *Collector) takeSnapshot(ctx context.Context, all bool) (snapshot, error) {
	c.load()
	images, err := c.cfg.Images.Images(ctx)
	if err != nil {
		return snapshot{}, fmt.Errorf("list images: %w", err)
	}
	// Listed after the images, so that an image in use is in the list of images.
	used, err := c.used(ctx)
	if err != nil {
		return snapshot{}, err
	}
	fs, err := c.measure(ctx)
	if err != nil {
		return snapshot{}, err
	}
	if err := c.pinSandboxImage(ctx); err != nil {
		return snapshot{}, err
	}
	l := snapshot{at: time.Now(), policy: *c.policy.Load(), images: MergeByID(images), fs: fs}
	c.noteUnnamed(l.images, l.at)
	ended := c.leases.takeUsed()
	note(c.known, l.images, func(image runtime.Image) bool {
		return used.has(image) || ended.has(image) || c.leases.has(image)
	}, l.at)
	l.state = PlanInput{Records: c.known, AllUnused: all, BytesToFree: BytesToFree(fs, l.policy), KeepReason: func(image runtime.Image) Reason {
		return c.keepReason(image, used, l.at)
	}}
	return l, nil
}

// keepReason returns why an image must be kept, or "".
func (c *Collector) keepReason(image runtime.Image, used nameSet, now time.Time) Reason {
	since := c.unnamed[image.ID] // zero, which is long ago, for an image with a name
	switch {
	case c.keep.has(image):
		return ReasonConfigured
	case used.has(image):
		return ReasonInUse
	case c.leases.has(image):
		return ReasonLeased
	case now.Sub(since) < untaggedGracePeriod:
		return ReasonUntagged
	}
	return ""
}

// noteUnnamed records since when images have had no name. At the end of a pull, a
// runtime lists an image by its id alone for a moment, and leases match it only
// afterwards.
func (c *Collector) noteUnnamed(images []runtime.Image, now time.Time) {
	previous := c.unnamed
	c.unnamed = make(map[string]time.Time)
	for _, image := range images {
		if len(image.Tags)+len(image.Digests) > 0 {
			continue
		}
		since, ok := previous[image.ID]
		if !ok || since.After(now) {
			since = now
		}
		c.unnamed[image.ID] = since
	}
}

// pinSandboxImage keeps the sandbox image. No container refers to it, and no pod starts
// without it.
func (c *Collector) pinSandboxImage(ctx context.Context) error {
	if c.cfg.SandboxImage == nil {
		return nil
	}
	ref, err := c.cfg.SandboxImage(ctx)
	if err != nil {
		return fmt.Errorf("get sandbox image: %w", err)
	}
	c.keep.add(ref)
	return nil
}

// used returns the names of the images of all containers.
func (c *Collector) used(ctx context.Context) (nameSet, error) {
	refs, err := c.cfg.Images.ImagesInUse(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images in use: %w", err)
	}
	names := make(nameSet)
	for _, ref := range refs {
		names.add(ref)
	}
	return names, nil
}

// measure measures the image file system.
func (c *Collector) measure(ctx context.Context) (runtime.FSUsage, error) {
	all, _, err := c.cfg.Images.ImageFS(ctx)
	if err != nil {
		return runtime.FSUsage{}, fmt.Errorf("measure image file system: %w", err)
	}
	if len(all) == 0 {
		return runtime.FSUsage{}, errors.New("measure image file system: runtime reports none")
	}
	if all[0].CapacityBytes > 0 {
		return all[0], nil
	}
	fs, err := c.cfg.Statfs(all[0].Mountpoint)
	if err != nil {
		return runtime.FSUsage{}, fmt.Errorf("measure image file system at %s: %w", all[0].Mountpoint, err)
	}
	return fs, nil
}

func (c *Collector) collect(ctx context.Context, all bool) (result Result, err error) {
	if err := c.acquire(ctx); err != nil {
		return Result{}, err
	}
	defer func() { <-c.collectCh }()
	startTime := time.Now()
	l, err := c.takeSnapshot(ctx, all)
	if err == nil {
		result, err = c.execute(ctx, l)
	}
	result.Duration = time.Since(startTime)
	c.save()
	c.report(result, err)
	return result, err
}

// execute removes images one by one. Images that the plan keeps as not needed are
// removed too, in order, as long as the file system has not gained enough. While it cannot
// be measured, the sizes of the removed images count instead.
func (c *Collector) execute(ctx context.Context, l snapshot) (Result, error) {
	result := Result{BytesToFree: l.state.BytesToFree}
	var errs []error
	for _, choice := range Plan(l.images, l.state, l.policy, l.at) {
		enough := result.BytesFreed >= result.BytesToFree
		switch {
		case ctx.Err() != nil:
			return result, errors.Join(append(errs, context.Cause(ctx))...)
		case choice.Reason == ReasonDiskUsage && enough, choice.Reason == ReasonNotNeeded && enough:
			continue
		case choice.Reason == ReasonNotNeeded:
			choice.Remove, choice.Reason = true, ReasonDiskUsage
		case !choice.Remove:
			continue
		}
		removed, err := c.remove(ctx, choice)
		if err != nil {
			errs = append(errs, err)
		}
		if !removed {
			continue
		}
		result.Removed = append(result.Removed, choice)
		delete(c.known, choice.Image.ID)
		freed, err := c.freed(ctx, l.fs, result.BytesFreed)
		switch {
		case err == nil:
			result.BytesFreed = freed
		case ctx.Err() == nil:
			result.BytesFreed += choice.Image.Bytes // an estimate, as in the plan
		}
		if choice.Reason == ReasonMaxAge && !isAboveHigh(l, result.BytesFreed) {
			result.BytesToFree = 0
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if result.BytesFreed < result.BytesToFree && !l.state.AllUnused {
		errs = append(errs, &InsufficientSpaceError{BytesToFree: result.BytesToFree, BytesFreed: result.BytesFreed})
	}
	return result, errors.Join(errs...)
}

// isAboveHigh reports whether disk usage is at the high threshold when so many bytes have been freed.
// If the images above the maximum age, which are removed first, have freed enough, no others are.
func isAboveHigh(l snapshot, freed uint64) bool {
	l.fs.AvailableBytes += freed
	return BytesToFree(l.fs, l.policy) > 0
}

// remove removes an image unless it has come into use since it was chosen, under any
// name that it has now. It reports whether the image no longer exists.
func (c *Collector) remove(ctx context.Context, choice Decision) (removed bool, err error) {
	images, err := c.cfg.Images.Images(ctx)
	if err != nil {
		return false, fmt.Errorf("list images: %w", err)
	}
	images = MergeByID(images)
	i := slices.IndexFunc(images, func(image runtime.Image) bool { return image.ID == choice.Image.ID })
	if i < 0 {
		return true, nil // another client removed it
	}
	c.noteUnnamed(images, time.Now())
	end, ok := c.leases.begin(images[i])
	if !ok {
		return false, nil
	}
	defer end()
	used, err := c.used(ctx)
	if err != nil {
		return false, err
	}
	if images[i].Pinned || c.keepReason(images[i], used, time.Now()) != "" {
		return false, nil
	}
	startTime := time.Now()
	err = c.cfg.Images.RemoveImage(ctx, choice.Image.ID)
	if errors.Is(err, runtime.ErrNotFound) {
		err = nil // another client removed it
	}
	if err != nil {
		err = fmt.Errorf("remove image %s: %w", choice.Image.ID, err)
	}
	if c.cfg.Hooks.Removed != nil {
		c.cfg.Hooks.Removed(choice.Image, choice.Reason, time.Since(startTime), err)
	}
	return err == nil, err
}

// freed returns how many bytes became available since start. A runtime may remove the
// layers of an image with a delay, so freed waits up to DiskSettleTime for the value to
// exceed the previous one.
func (c *Collector) freed(ctx context.Context, start runtime.FSUsage, previous uint64) (uint64, error) {
	const tries = 8
	for try := 0; ; try++ {
		now, err := c.measure(ctx)
		if err != nil {
			return 0, err
		}
		freed := now.AvailableBytes - min(start.AvailableBytes, now.AvailableBytes)
		if freed > previous || try == tries {
			return freed, nil
		}
		if err := sleep.For(ctx, c.cfg.DiskSettleTime/tries); err != nil {
			return 0, err
		}
	}
}

// report logs the result in one line and records an event for an error.
func (c *Collector) report(result Result, err error) {
	if len(result.Removed) > 0 {
		c.cfg.Logger.Info("image garbage collection done", slog.Int("removed", len(result.Removed)),
			slog.Uint64("bytesToFree", result.BytesToFree), slog.Uint64("bytesFreed", result.BytesFreed), slog.Duration("duration", result.Duration))
	}
	var short *InsufficientSpaceError
	switch {
	case errors.As(err, &short):
		c.event("FreeDiskSpaceFailed", short.Error())
	case err != nil && !errors.Is(err, context.Canceled):
		c.event("ImageGCFailed", err.Error())
	}
	if c.cfg.Hooks.Collected != nil {
		c.cfg.Hooks.Collected(result, err)
	}
}

// load reads the image records once. Lost records start again.
func (c *Collector) load() {
	if c.loaded {
		return
	}
	c.loaded, c.known = true, make(map[string]ImageRecord)
	if c.cfg.RecordsFile == "" {
		return
	}
	known, err := load(c.cfg.RecordsFile)
	now := time.Now()
	for id, k := range known {
		known[id] = ImageRecord{FirstDetected: monotonic.Past(k.FirstDetected, now), LastUsed: monotonic.Past(k.LastUsed, now)}
	}
	c.known = known
	if err != nil {
		c.cfg.Logger.Warn("image usage records lost, ages start again", logattr.Err(err))
		c.reportLostRecords(err)
	}
}

// save writes the image records. Without success they are still in memory, for the next try.
func (c *Collector) save() {
	if !c.loaded || c.cfg.RecordsFile == "" {
		return
	}
	if err := save(c.cfg.RecordsFile, onWallClock(c.known, time.Now())); err != nil {
		c.cfg.Logger.Warn("saving image usage records failed", logattr.Err(err))
		c.reportLostRecords(err)
	}
}

func (c *Collector) reportLostRecords(err error) {
	if c.cfg.Hooks.RecordsLost != nil {
		c.cfg.Hooks.RecordsLost(err)
	}
}
