package imagegc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/runtime"
)

// untaggedGracePeriod is how long an image without a name stays for being one that is pulled.
const untaggedGracePeriod = time.Minute

// snapshot is one look at the node.
type snapshot struct {
	at     time.Time
	images []runtime.Image
	fs     runtime.FSUsage
	state  PlanInput
}

// takeSnapshot gathers what a plan needs and remembers who is in use. If any part of it
// is not to be had there is no plan: nothing is removed in the dark.
func (c *Collector) takeSnapshot(ctx context.Context, all bool) (snapshot, error) {
	c.load()
	images, err := c.cfg.Images.Images(ctx)
	if err != nil {
		return snapshot{}, fmt.Errorf("list images: %w", err)
	}
	// After the images: what is in use then was there before.
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
	l := snapshot{at: time.Now(), images: MergeByID(images), fs: fs}
	c.noteUnnamed(l.images, l.at)
	ended := c.leases.takeUsed()
	note(c.known, l.images, func(image runtime.Image) bool {
		return used.has(image) || ended.has(image) || c.leases.has(image)
	}, l.at)
	l.state = PlanInput{Records: c.known, AllUnused: all, BytesToFree: BytesToFree(fs, c.cfg.Policy), KeepReason: func(image runtime.Image) Reason {
		return c.keepReason(image, used, l.at)
	}}
	return l, nil
}

// keepReason says why an image must stay, or "".
func (c *Collector) keepReason(image runtime.Image, used nameSet, now time.Time) Reason {
	since, unnamed := c.unnamed[image.ID]
	switch {
	case c.keep.has(image):
		return ReasonConfigured
	case used.has(image):
		return ReasonInUse
	case c.leases.has(image):
		return ReasonLeased
	case unnamed && now.Sub(since) < untaggedGracePeriod:
		return ReasonUntagged
	}
	return ""
}

// noteUnnamed remembers since when images have no name. A runtime lists an image
// by its id alone for a moment at the end of its pull: whose lease it is shows
// only afterwards.
func (c *Collector) noteUnnamed(images []runtime.Image, now time.Time) {
	former := c.unnamed
	c.unnamed = make(map[string]time.Time)
	for _, image := range images {
		if len(image.Tags)+len(image.Digests) > 0 {
			continue
		}
		since, again := former[image.ID]
		if !again || since.After(now) {
			since = now
		}
		c.unnamed[image.ID] = since
	}
}

// pinSandboxImage has what sandboxes are made from kept. No container tells of
// it, and without it no pod starts.
func (c *Collector) pinSandboxImage(ctx context.Context) error {
	if c.cfg.SandboxImage == nil {
		return nil
	}
	ref, err := c.cfg.SandboxImage(ctx)
	if err != nil {
		return fmt.Errorf("ask for the image of sandboxes: %w", err)
	}
	c.keep.add(ref)
	return nil
}

// used returns the names of the images that containers were made from.
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

// measure reads the image file system.
func (c *Collector) measure(ctx context.Context) (runtime.FSUsage, error) {
	all, _, err := c.cfg.Images.ImageFS(ctx)
	if err != nil {
		return runtime.FSUsage{}, fmt.Errorf("measure the image file system: %w", err)
	}
	if len(all) == 0 {
		return runtime.FSUsage{}, errors.New("measure the image file system: the runtime tells of none")
	}
	if all[0].CapacityBytes > 0 {
		return all[0], nil
	}
	fs, err := c.cfg.Statfs(all[0].Mountpoint)
	if err != nil {
		return runtime.FSUsage{}, fmt.Errorf("measure the image file system at %s: %w", all[0].Mountpoint, err)
	}
	return fs, nil
}

func (c *Collector) collect(ctx context.Context, all bool) (result Result, err error) {
	if err := c.acquire(ctx); err != nil {
		return Result{}, err
	}
	defer func() { <-c.collectCh }()
	began := time.Now()
	l, err := c.takeSnapshot(ctx, all)
	if err == nil {
		result, err = c.carryOut(ctx, l)
	}
	result.Duration = time.Since(began)
	c.save()
	c.report(result, err)
	return result, err
}

// carryOut removes images one after the other. What the plan holds back for want
// of need goes too, in order, while the file system says that it takes more.
func (c *Collector) carryOut(ctx context.Context, l snapshot) (Result, error) {
	result := Result{BytesToFree: l.state.BytesToFree}
	var errs []error
	for _, choice := range Plan(l.images, l.state, c.cfg.Policy, l.at) {
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
		gone, err := c.remove(ctx, choice)
		if err != nil {
			errs = append(errs, err)
		}
		if !gone {
			continue
		}
		result.Removed = append(result.Removed, choice)
		delete(c.known, choice.Image.ID)
		if freed, err := c.freed(ctx, l.fs, result.BytesFreed); err != nil {
			errs = append(errs, err)
		} else {
			result.BytesFreed = freed
		}
	}
	if result.BytesFreed < result.BytesToFree && !l.state.AllUnused {
		errs = append(errs, &InsufficientSpaceError{BytesToFree: result.BytesToFree, BytesFreed: result.BytesFreed})
	}
	return result, errors.Join(errs...)
}

// remove removes one image if nobody needs it by now, under whatever names it has
// got since it was chosen.
func (c *Collector) remove(ctx context.Context, choice Decision) (gone bool, err error) {
	images, err := c.cfg.Images.Images(ctx)
	if err != nil {
		return false, fmt.Errorf("list images: %w", err)
	}
	images = MergeByID(images)
	i := slices.IndexFunc(images, func(image runtime.Image) bool { return image.ID == choice.Image.ID })
	if i < 0 {
		return true, nil // it went by itself
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
	began := time.Now()
	err = c.cfg.Images.RemoveImage(ctx, choice.Image.ID)
	if errors.Is(err, runtime.ErrNotFound) {
		err = nil // it went by itself
	}
	if err != nil {
		err = fmt.Errorf("remove image %s: %w", choice.Image.ID, err)
	}
	if c.cfg.Hooks.Removed != nil {
		c.cfg.Hooks.Removed(choice.Image, choice.Reason, time.Since(began), err)
	}
	return err == nil, err
}

// freed returns what the file system gained since before. A runtime may take a
// moment to let go of an image's layers: a reading that has not moved is given
// the time to settle.
func (c *Collector) freed(ctx context.Context, before runtime.FSUsage, former uint64) (uint64, error) {
	const tries = 8
	for try := 0; ; try++ {
		now, err := c.measure(ctx)
		if err != nil {
			return former, err
		}
		freed := now.AvailableBytes - min(before.AvailableBytes, now.AvailableBytes)
		if freed > former || try == tries {
			return freed, nil
		}
		wait := time.NewTimer(c.cfg.DiskSettleTime / tries)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return freed, context.Cause(ctx)
		}
	}
}

// report tells the result: one line, an event if the disk stays full.
func (c *Collector) report(result Result, err error) {
	if len(result.Removed) > 0 {
		c.cfg.Logger.Info("images collected", slog.Int("removed", len(result.Removed)),
			slog.Uint64("wanted", result.BytesToFree), slog.Uint64("freed", result.BytesFreed), slog.Duration("took", result.Duration))
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

// load reads the ages once. What is lost counts as just seen.
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
	c.reportLostRecords(err)
}

func (c *Collector) save() {
	if c.loaded && c.cfg.RecordsFile != "" {
		c.reportLostRecords(save(c.cfg.RecordsFile, c.known))
	}
}

func (c *Collector) reportLostRecords(err error) {
	if err == nil {
		return
	}
	c.cfg.Logger.Warn("ages of images are lost; they count as just seen", slog.Any("error", err))
	if c.cfg.Hooks.RecordsLost != nil {
		c.cfg.Hooks.RecordsLost(err)
	}
}
