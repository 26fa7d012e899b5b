package imagegc

import (
	"cmp"
	"slices"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// Policy says which images may go, and when.
type Policy struct {
	// HighThresholdPercent of the image file system in use is where collection begins,
	// LowPercent where it ends. Default: 85 and 80. 100 and more for HighPercent
	// means that the disk is no reason.
	HighThresholdPercent, LowThresholdPercent int
	// MinAge is how long an image must have been on the node before it may go.
	// Default: 2 min. Negative: none.
	MinAge time.Duration
	// MaxAge is how long an image may be unused before it goes though there is
	// room. Default: off.
	MaxAge time.Duration
}

// ImageRecord is what is remembered of an image.
type ImageRecord struct {
	FirstDetected time.Time // on this node
	LastUsed      time.Time // by a container or a lease; FirstSeen if by none yet
}

// Reason says why an image goes or stays.
type Reason string

// The reasons to go.
const (
	ReasonMaxAge    Reason = "unused for longer than the maximum age"
	ReasonDiskUsage Reason = "the disk is full and it is the least recently used"
	ReasonUnused    Reason = "it is not in use"
)

// The reasons to stay.
const (
	ReasonPinned      Reason = "it is pinned"
	ReasonConfigured  Reason = "the configuration keeps it"
	ReasonInUse       Reason = "a container was made from it"
	ReasonLeased      Reason = "a pod needs it"
	ReasonMinAge      Reason = "it is younger than the minimum age"
	ReasonNotNeeded   Reason = "there is room enough"
	ReasonNotDetected Reason = "it was not seen before"
	ReasonUntagged    Reason = "it has no name yet: it may be being pulled"
)

// Decision is what is to become of one image.
type Decision struct {
	Image  runtime.Image
	Record ImageRecord
	Remove bool
	Reason Reason
}

// PlanInput is what a plan looks at besides the images.
type PlanInput struct {
	Records map[string]ImageRecord // by image id
	// KeepReason returns why an image must stay, or "".
	KeepReason func(runtime.Image) Reason
	// BytesToFree is how many bytes must be freed; 0 for none.
	BytesToFree uint64
	// AllUnused asks for every image that may go, whatever Free says.
	AllUnused bool
}

// Plan chooses what becomes of each image: first those to remove, in the order
// in which to do so, then those that stay. It is pure.
//
// Images that are over their age go in any case. Of the others as many go, the
// least recently used first, as their sizes make up what must be freed. As sizes
// count shared layers again and again, the file system may want more: then those
// kept for NoNeed are next, in the order given.
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

// choose judges one image by itself. NoNeed marks those that may go if there is
// need.
func choose(image runtime.Image, s PlanInput, p Policy, now time.Time) Decision {
	known, seen := s.Records[image.ID]
	c := Decision{Image: image, Record: known, Reason: ReasonNotNeeded}
	held := Reason("")
	if s.KeepReason != nil {
		held = s.KeepReason(image)
	}
	switch {
	case image.Pinned:
		c.Reason = ReasonPinned
	case held != "":
		c.Reason = held
	case !seen:
		c.Reason = ReasonNotDetected
	case now.Sub(known.FirstDetected) < p.MinAge:
		c.Reason = ReasonMinAge
	case p.MaxAge > 0 && now.Sub(known.LastUsed) > p.MaxAge:
		c.Remove, c.Reason = true, ReasonMaxAge
	}
	return c
}

// compareLastUsed orders choices: over their age, then free to go, then held; within
// these the least recently used first, of those the longest known, and to make
// it one order, by id.
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

// MergeByID makes one image of those that share an id: runtimes list one for each
// name. Its size counts once.
func MergeByID(images []runtime.Image) []runtime.Image {
	at := make(map[string]int, len(images))
	out := make([]runtime.Image, 0, len(images))
	for _, image := range images {
		i, again := at[image.ID]
		if !again {
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

// BytesToFree returns how many bytes must be freed to get from a reading down to the
// low threshold, once it is at the high one: none below that, nor for a file
// system of unknown size.
func BytesToFree(fs runtime.FSUsage, p Policy) uint64 {
	// As floats: a capacity times a hundred does not fit for huge disks.
	share := func(percent int) float64 { return float64(fs.CapacityBytes) * float64(percent) / 100 }
	if fs.CapacityBytes == 0 || p.HighThresholdPercent >= 100 || float64(fs.AvailableBytes) > share(100-p.HighThresholdPercent) {
		return 0
	}
	want := uint64(share(max(100-p.LowThresholdPercent, 0)))
	return want - min(fs.AvailableBytes, want)
}
