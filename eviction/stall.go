package eviction

import (
	"math"
	"time"
)

const (
	// stallWindow is the minimum time over which waiting is measured after an
	// eviction: two update periods of the kernel.
	stallWindow = 2 * psiWindow
	// stallMean is the time constant of the kernel's avg10.
	stallMean = 10 * time.Second
)

// stallBase is the pressure after an eviction, the base for judging whether it
// continues. The kernel's average decays slowly and stays above a threshold long after
// the last task has waited, which would evict several pods for one stall.
type stallBase struct {
	at      time.Time // zero: set by the next observation
	percent float64
	total   time.Duration
}

// continues reports whether tasks have waited beyond the threshold since the base was
// set, and if not, when to check next. It uses the kernel's total time waited or, where
// that is unknown, the average once it would have decayed to the threshold. It is pure.
func (b *stallBase) continues(o observation, threshold float64) (due bool, next time.Time) {
	since := o.At.Sub(b.at)
	decay := decayTime(b.percent, threshold)
	switch {
	case since >= decay:
		return true, time.Time{}
	case since < stallWindow:
		return false, b.at.Add(min(stallWindow, decay))
	}
	if waited := o.Waited - b.total; waited.Seconds()*100 > threshold*since.Seconds() {
		return true, time.Time{}
	}
	return false, o.At.Add(min(psiWindow, decay-since))
}

// decayTime returns how long the kernel's average takes to decay from percent to the
// threshold when no task waits, plus stallWindow.
func decayTime(percent, threshold float64) time.Duration {
	if percent <= threshold || threshold <= 0 {
		return stallWindow
	}
	return time.Duration(math.Log(percent/threshold)*float64(stallMean)) + stallWindow
}
