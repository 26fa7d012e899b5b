package imagegc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// Policy controls which images are removed, and when.
type Policy struct {
	// HighThresholdPercent is the usage of the image file system at which images are
	// removed, until usage is LowThresholdPercent. Defaults: 85 and 80. A high
	// threshold of 100 or more disables removal for disk usage.
	HighThresholdPercent, LowThresholdPercent int
	// MinAge is the minimum time since detection before an image is removed.
	// Default: 2m. Negative: none.
	MinAge time.Duration
	// MaxAge is how long an image may be unused before it is removed regardless of
	// disk usage. Default: unlimited.
	MaxAge time.Duration
}

// withDefaults returns the policy with its defaults in the place of zeros.
func (p Policy) withDefaults() Policy {
	p.HighThresholdPercent, p.LowThresholdPercent = cmp.Or(p.HighThresholdPercent, 85), cmp.Or(p.LowThresholdPercent, 80)
	p.MinAge = cmp.Or(p.MinAge, 2*time.Minute)
	return p
}

// Check returns all errors in the policy, joined. New does so too.
func (p Policy) Check() error {
	p = p.withDefaults()
	var errs []error
	if p.LowThresholdPercent < 0 || p.LowThresholdPercent >= p.HighThresholdPercent {
		errs = append(errs, fmt.Errorf("imagegc: Config.Policy: LowThresholdPercent %d must be below HighThresholdPercent %d and not negative", p.LowThresholdPercent, p.HighThresholdPercent))
	}
	if p.MaxAge < 0 || p.MaxAge > 0 && p.MaxAge <= p.MinAge {
		errs = append(errs, fmt.Errorf("imagegc: Config.Policy: MaxAge %v must be above MinAge %v", p.MaxAge, p.MinAge))
	}
	return errors.Join(errs...)
}

// ImageRecord is the history of an image on this node.
type ImageRecord struct {
	FirstDetected time.Time
	LastUsed      time.Time // by a container or a lease; FirstDetected if never
}

// Reason is why an image is removed or kept.
type Reason string

// Reasons for removal.
const (
	ReasonMaxAge    Reason = "unused for longer than the maximum age"
	ReasonDiskUsage Reason = "the disk is full and it is the least recently used"
	ReasonUnused    Reason = "it is not in use"
)

// Reasons to keep an image.
const (
	ReasonPinned      Reason = "it is pinned"
	ReasonConfigured  Reason = "the configuration keeps it"
	ReasonInUse       Reason = "a container was made from it"
	ReasonLeased      Reason = "a pod needs it"
	ReasonMinAge      Reason = "it is younger than the minimum age"
	ReasonNotNeeded   Reason = "there is room enough"
	ReasonNotDetected Reason = "it was not detected before"
	ReasonUntagged    Reason = "it has no name yet: it may be being pulled"
)

// Decision is the decision on one image.
type Decision struct {
	Image  runtime.Image
	Record ImageRecord
	Remove bool
	Reason Reason
}

// PlanInput is the input of Plan besides the images.
type PlanInput struct {
	Records map[string]ImageRecord // by image id
	// KeepReason returns why an image must be kept, or "". nil keeps none.
	KeepReason func(runtime.Image) Reason
	// BytesToFree is the number of bytes that must be freed.
	BytesToFree uint64
	// AllUnused removes all removable images regardless of BytesToFree.
	AllUnused bool
}

// Plan decides on each image. It returns the images to remove first, in the order of
// removal, then those to keep. It is pure.
//
// Images above the maximum age are always removed. Of the others, the least recently
// used are removed until their sizes add up to BytesToFree. Because sizes include
// shared layers, this may free too little: images kept as ReasonNotNeeded are next, in
// the returned order.
func Plan(images []runtime.Image, s PlanInput, p Policy, now time.Time) []Decision {
	choices := make([]Decision, 0, len(images))
	for _, image := range MergeByID(images) {
		choices = append(choices, choose(image, s, p, now))
	}
	slices.SortStableFunc(choices, compareLastUsed)
	freed := uint64(0)
	for i := range choices {
		c := &choices[i]
		switch {
		case c.Reason == ReasonNotNeeded && s.AllUnused:
			c.Remove, c.Reason = true, ReasonUnused
		case c.Reason == ReasonNotNeeded && freed < s.BytesToFree:
			c.Remove, c.Reason = true, ReasonDiskUsage
		}
		if c.Remove {
			freed += c.Image.Bytes
		}
	}
	return choices
}

// choose decides on one image by itself. ReasonNotNeeded marks those that are removable
// if disk space is needed.
func choose(image runtime.Image, s PlanInput, p Policy, now time.Time) Decision {
	record, ok := s.Records[image.ID]
	c := Decision{Image: image, Record: record, Reason: ReasonNotNeeded}
	keep := Reason("")
	if s.KeepReason != nil {
		keep = s.KeepReason(image)
	}
	switch {
	case image.Pinned:
		c.Reason = ReasonPinned
	case keep != "":
		c.Reason = keep
	case !ok:
		c.Reason = ReasonNotDetected
	case now.Sub(record.FirstDetected) < p.MinAge:
		c.Reason = ReasonMinAge
	case p.MaxAge > 0 && now.Sub(record.LastUsed) > p.MaxAge:
		c.Remove, c.Reason = true, ReasonMaxAge
	}
	return c
}

// compareLastUsed orders decisions: images above the maximum age, then removable, then
// kept ones; each by last use, then by detection, then by id.
func compareLastUsed(a, b Decision) int {
	rank := func(c Decision) int {
		switch {
		case c.Remove:
			return 0
		case c.Reason == ReasonNotNeeded:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)),
		a.Record.LastUsed.Compare(b.Record.LastUsed),
		a.Record.FirstDetected.Compare(b.Record.FirstDetected),
		cmp.Compare(a.Image.ID, b.Image.ID))
}

// MergeByID merges images with the same id, because some runtimes list one per name.
// The size counts once.
func MergeByID(images []runtime.Image) []runtime.Image {
	at := make(map[string]int, len(images))
	out := make([]runtime.Image, 0, len(images))
	for _, image := range images {
		i, ok := at[image.ID]
		if !ok {
			at[image.ID] = len(out)
			out = append(out, image)
			continue
		}
		first := &out[i]
		first.Tags = slices.Concat(first.Tags, image.Tags)
		first.Digests = slices.Concat(first.Digests, image.Digests)
		first.Pinned = first.Pinned || image.Pinned
		first.Bytes = max(first.Bytes, image.Bytes)
	}
	return out
}

// BytesToFree returns how many bytes must be freed to reach the low threshold, or 0 if
// usage is below the high one or the capacity is unknown.
func BytesToFree(fs runtime.FSUsage, p Policy) uint64 {
	// Computed as float64, because capacity*100 can overflow. Of an unknown capacity, which
	// is 0, every share is 0.
	share := func(percent int) float64 { return float64(fs.CapacityBytes) * float64(percent) / 100 }
	if p.HighThresholdPercent >= 100 || float64(fs.AvailableBytes) > share(100-p.HighThresholdPercent) {
		return 0
	}
	want := uint64(share(max(100-p.LowThresholdPercent, 0)))
	return want - min(fs.AvailableBytes, want)
}
