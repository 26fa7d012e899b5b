package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

const (
	// minPollInterval is the minimum interval between measurements without a notification.
	minPollInterval = 100 * time.Millisecond
	// psiWindow is the interval at which the kernel updates its averages of pressure.
	psiWindow = 2 * time.Second
)

// maxRate returns how much of a resource can be consumed in a second. The rates are
// those of fast machines.
func maxRate(name corev1.ResourceName) uint64 {
	switch name {
	case resourceInodes:
		return 200_000
	case resourcePids:
		return 20_000
	default:
		return 4 << 30 // bytes: memory is cleared, and files grow in the page cache first
	}
}

// nextPoll returns how long no further threshold can be met: the time in which the
// amount above it can be consumed, between minPollInterval and longest. Signals that
// the kernel reports, and those that were not measured, are left out. It is pure.
func nextPoll(u *runtime.NodeUsage, thresholds []Threshold, kernelSignals map[Signal]bool, longest time.Duration) time.Duration {
	wait := longest
	for _, t := range thresholds {
		f, _ := infoFor(t.Signal)
		if f.pressure {
			wait = min(wait, psiWindow)
			continue
		}
		available, capacity, at := f.read(u)
		bound := t.Value.Of(capacity)
		if kernelSignals[t.Signal] || at.IsZero() || available < bound {
			continue
		}
		seconds := float64(available-bound) / float64(maxRate(f.resource))
		if seconds < longest.Seconds() {
			wait = min(wait, time.Duration(seconds*float64(time.Second)))
		}
	}
	return min(max(wait, minPollInterval), longest)
}
