package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

const (
	// minPollInterval is the shortest pause between two looks that nothing calls for.
	minPollInterval = 100 * time.Millisecond
	// psiWindow is how often the kernel brings its averages of pressure up to date.
	psiWindow = 2 * time.Second
)

// fastest is how much of a resource can be used up in a second: what fast
// machines do, and more than most.
func fastest(name corev1.ResourceName) uint64 {
	switch name {
	case resourceInodes:
		return 200_000
	case resourcePids:
		return 20_000
	default:
		return 4 << 30 // memory is cleared, and files grow in memory first
	}
}

// nextPoll is how long no threshold can be crossed that is not crossed yet: the time
// in which what is left above it can be used up, between nearest and most. What
// the kernel tells of is left out, and so is what was not measured. It is pure.
func nextPoll(u *runtime.NodeUsage, thresholds []Threshold, told map[Signal]bool, most time.Duration) time.Duration {
	wait := most
	for _, t := range thresholds {
		f, _ := infoFor(t.Signal)
		if f.pressure {
			wait = min(wait, psiWindow)
			continue
		}
		available, capacity, at := f.read(u)
		bound := t.Value.Of(capacity)
		if told[t.Signal] || at.IsZero() || available < bound {
			continue
		}
		seconds := float64(available-bound) / float64(fastest(f.resource))
		if seconds < most.Seconds() {
			wait = min(wait, time.Duration(seconds*float64(time.Second)))
		}
	}
	return min(max(wait, minPollInterval), most)
}
