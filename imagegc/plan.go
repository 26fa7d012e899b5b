package imagegc

import (
	"cmp"
	"slices"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// Policy says which images may go, and when.
type Policy struct {
	// HighPercent of the image file system in use is where collection begins,
	// LowPercent where it ends. Default: 85 and 80. 100 and more for HighPercent
	// means that the disk is no reason.
	HighPercent, LowPercent int
	// MinAge is how long an image must have been on the node before it may go.
	// Default: 2 min. Negative: none.
	MinAge time.Duration
	// MaxAge is how long an image may be unused before it goes though there is
	// room. Default: off.
	MaxAge time.Duration
}

// Known is what is remembered of an image.
type Known struct {
	FirstSeen time.Time // on this node
	LastUsed  time.Time // by a container or a lease; FirstSeen if by none yet
}

// Reason says why an image goes or stays.
type Reason string

// The reasons to go.
const (
	Old    Reason = "unused for longer than the maximum age"
	Full   Reason = "the disk is full and it is the least recently used"
	Unused Reason = "it is not in use"
)

// The reasons to stay.
const (
	Pinned  Reason = "it is pinned"
	Kept    Reason = "the configuration keeps it"
	InUse   Reason = "a container was made from it"
	Leased  Reason = "a pod needs it"
	Young   Reason = "it is younger than the minimum age"
	NoNeed  Reason = "there is room enough"
	Unknown Reason = "it was not seen before"
	Unnamed Reason = "it has no name yet: it may be being pulled"
)

// Choice is what is to become of one image.
type Choice struct {
	Image  runtime.Image
	Known  Known
	Remove bool
	Reason Reason
}

// State is what a plan looks at besides the images.
type State struct {
	Known map[string]Known // by image id
	// Held returns why an image must stay, or "".
	Held func(runtime.Image) Reason
	// Free is how many bytes must be freed; 0 for none.
	Free uint64
	// All asks for every image that may go, whatever Free says.
	All bool
}

// Plan chooses what becomes of each image: first those to remove, in the order
// in which to do so, then those that stay. It is pure.
//
// Images that are over their age go in any case. Of the others as many go, the
// least recently used first, as their sizes make up what must be freed. As sizes
// count shared layers again and again, the file system may want more: then those
// kept for NoNeed are next, in the order given.
func Plan(images []runtime.Image, s State, p Policy, now time.Time) []Choice {
	choices := make([]Choice, 0, len(images))
	for _, image := range Merge(images) {
		choices = append(choices, choose(image, s, p, now))
	}
	slices.SortStableFunc(choices, byTurn)
	freed := uint64(0)
	for i := range choices {
		c := &choices[i]
		switch {
		case c.Reason == NoNeed && s.All:
			c.Remove, c.Reason = true, Unused
		case c.Reason == NoNeed && freed < s.Free:
			c.Remove, c.Reason = true, Full
		}
		if c.Remove {
			freed += c.Image.Bytes
		}
	}
	return choices
}

// choose judges one image by itself. NoNeed marks those that may go if there is
// need.
func choose(image runtime.Image, s State, p Policy, now time.Time) Choice {
	known, seen := s.Known[image.ID]
	c := Choice{Image: image, Known: known, Reason: NoNeed}
	held := Reason("")
	if s.Held != nil {
		held = s.Held(image)
	}
	switch {
	case image.Pinned:
		c.Reason = Pinned
	case held != "":
		c.Reason = held
	case !seen:
		c.Reason = Unknown
	case now.Sub(known.FirstSeen) < p.MinAge:
		c.Reason = Young
	case p.MaxAge > 0 && now.Sub(known.LastUsed) > p.MaxAge:
		c.Remove, c.Reason = true, Old
	}
	return c
}

// byTurn orders choices: over their age, then free to go, then held; within
// these the least recently used first, of those the longest known, and to make
// it one order, by id.
func byTurn(a, b Choice) int {
	rank := func(c Choice) int {
		switch {
		case c.Remove:
			return 0
		case c.Reason == NoNeed:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)),
		a.Known.LastUsed.Compare(b.Known.LastUsed),
		a.Known.FirstSeen.Compare(b.Known.FirstSeen),
		cmp.Compare(a.Image.ID, b.Image.ID))
}

// Merge makes one image of those that share an id: runtimes list one for each
// name. Its size counts once.
func Merge(images []runtime.Image) []runtime.Image {
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

// Need returns how many bytes must be freed to get from a reading down to the
// low threshold, once it is at the high one: none below that, nor for a file
// system of unknown size.
func Need(fs runtime.FSUsage, p Policy) uint64 {
	// As floats: a capacity times a hundred does not fit for huge disks.
	share := func(percent int) float64 { return float64(fs.CapacityBytes) * float64(percent) / 100 }
	if fs.CapacityBytes == 0 || p.HighPercent >= 100 || float64(fs.AvailableBytes) > share(100-p.HighPercent) {
		return 0
	}
	want := uint64(share(max(100-p.LowPercent, 0)))
	return want - min(fs.AvailableBytes, want)
}
