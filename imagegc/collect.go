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

// naming is how long an image without a name stays for being one that is pulled.
const naming = time.Minute

// look is one look at the node.
type look struct {
	at     time.Time
	images []runtime.Image
	fs     runtime.FSUsage
	state  State
}

// look gathers what a plan needs and remembers who is in use. If any part of it
// is not to be had there is no plan: nothing is removed in the dark.
func (c *Collector) look(ctx context.Context, all bool) (look, error) {
	c.load()
	images, err := c.cfg.Images.Images(ctx)
	if err != nil {
		return look{}, fmt.Errorf("list images: %w", err)
	}
	// After the images: what is in use then was there before.
	used, err := c.used(ctx)
	if err != nil {
		return look{}, err
	}
	fs, err := c.measure(ctx)
	if err != nil {
		return look{}, err
	}
	if err := c.keepSandboxImage(ctx); err != nil {
		return look{}, err
	}
	l := look{at: time.Now(), images: Merge(images), fs: fs}
	c.noteUnnamed(l.images, l.at)
	ended := c.leases.takeUsed()
	note(c.known, l.images, func(image runtime.Image) bool {
		return used.has(image) || ended.has(image) || c.leases.has(image)
	}, l.at)
	l.state = State{Known: c.known, All: all, Free: Need(fs, c.cfg.Policy), Held: func(image runtime.Image) Reason {
		return c.held(image, used, l.at)
	}}
	return l, nil
}

// held says why an image must stay, or "".
func (c *Collector) held(image runtime.Image, used nameSet, now time.Time) Reason {
	since, unnamed := c.unnamed[image.ID]
	switch {
	case c.keep.has(image):
		return Kept
	case used.has(image):
		return InUse
	case c.leases.has(image):
		return Leased
	case unnamed && now.Sub(since) < naming:
		return Unnamed
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

// keepSandboxImage has what sandboxes are made from kept. No container tells of
// it, and without it no pod starts.
func (c *Collector) keepSandboxImage(ctx context.Context) error {
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
	fs, err := c.cfg.Measure(all[0].Mountpoint)
	if err != nil {
		return runtime.FSUsage{}, fmt.Errorf("measure the image file system at %s: %w", all[0].Mountpoint, err)
	}
	return fs, nil
}

func (c *Collector) collect(ctx context.Context, all bool) (result Result, err error) {
	if err := c.acquire(ctx); err != nil {
		return Result{}, err
	}
	defer func() { <-c.turn }()
	began := time.Now()
	l, err := c.look(ctx, all)
	if err == nil {
		result, err = c.carryOut(ctx, l)
	}
	result.Took = time.Since(began)
	c.save()
	c.report(result, err)
	return result, err
}

// carryOut removes images one after the other. What the plan holds back for want
// of need goes too, in order, while the file system says that it takes more.
func (c *Collector) carryOut(ctx context.Context, l look) (Result, error) {
	result := Result{Wanted: l.state.Free}
	var errs []error
	for _, choice := range Plan(l.images, l.state, c.cfg.Policy, l.at) {
		enough := result.Freed >= result.Wanted
		switch {
		case ctx.Err() != nil:
			return result, errors.Join(append(errs, context.Cause(ctx))...)
		case choice.Reason == Full && enough, choice.Reason == NoNeed && enough:
			continue
		case choice.Reason == NoNeed:
			choice.Remove, choice.Reason = true, Full
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
		if freed, err := c.freed(ctx, l.fs, result.Freed); err != nil {
			errs = append(errs, err)
		} else {
			result.Freed = freed
		}
	}
	if result.Freed < result.Wanted && !l.state.All {
		errs = append(errs, &ShortError{Wanted: result.Wanted, Freed: result.Freed})
	}
	return result, errors.Join(errs...)
}

// remove removes one image if nobody needs it by now, under whatever names it has
// got since it was chosen.
func (c *Collector) remove(ctx context.Context, choice Choice) (gone bool, err error) {
	images, err := c.cfg.Images.Images(ctx)
	if err != nil {
		return false, fmt.Errorf("list images: %w", err)
	}
	images = Merge(images)
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
	if images[i].Pinned || c.held(images[i], used, time.Now()) != "" {
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
		wait := time.NewTimer(c.cfg.Settle / tries)
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
			slog.Uint64("wanted", result.Wanted), slog.Uint64("freed", result.Freed), slog.Duration("took", result.Took))
	}
	var short *ShortError
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
	c.loaded, c.known = true, make(map[string]Known)
	if c.cfg.File == "" {
		return
	}
	known, err := load(c.cfg.File)
	now := time.Now()
	for id, k := range known {
		known[id] = Known{FirstSeen: monotonic.Past(k.FirstSeen, now), LastUsed: monotonic.Past(k.LastUsed, now)}
	}
	c.known = known
	c.lost(err)
}

func (c *Collector) save() {
	if c.loaded && c.cfg.File != "" {
		c.lost(save(c.cfg.File, c.known))
	}
}

func (c *Collector) lost(err error) {
	if err == nil {
		return
	}
	c.cfg.Logger.Warn("ages of images are lost; they count as just seen", slog.Any("error", err))
	if c.cfg.Hooks.Lost != nil {
		c.cfg.Hooks.Lost(err)
	}
}
