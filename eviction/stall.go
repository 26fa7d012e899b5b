package eviction

import (
	"math"
	"time"
)

const (
	// stallWindow is over how long at least it is measured whether tasks still wait
	// after an eviction: two of the kernel's periods.
	stallWindow = 2 * psiWindow
	// stallMean is what the kernel's average of the last ten seconds decays by.
	stallMean = 10 * time.Second
)

// stallBase is where a pressure stood after an eviction. The kernel's average falls
// slowly: it stays above a threshold long after the last task has waited, and
// taken by its word it would have one pod after the other go for one stall.
type stallBase struct {
	at      time.Time // zero: to be filled in by the next observation
	percent float64
	total   time.Duration
}

// again reports whether tasks have waited beyond the threshold since the base was
// taken, and if not yet, when to look again. It goes by the kernel's count of time
// waited, and where that is not told by the average, once it would have fallen to
// the threshold by itself. It is pure.
func (b *stallBase) again(o Observation, threshold float64) (due bool, next time.Time) {
	since := o.At.Sub(b.at)
	fades := fade(b.percent, threshold)
	switch {
	case since >= fades:
		return true, time.Time{}
	case since < stallWindow:
		return false, b.at.Add(min(stallWindow, fades))
	}
	if waited := o.Waited - b.total; waited > 0 && waited.Seconds()*100 > threshold*since.Seconds() {
		return true, time.Time{}
	}
	return false, o.At.Add(min(psiWindow, fades-since))
}

// fade is how long the kernel's average takes from percent to the threshold when no
// task waits any more, and two of its periods more.
func fade(percent, threshold float64) time.Duration {
	if percent <= threshold || threshold <= 0 {
		return stallWindow
	}
	return time.Duration(math.Log(percent/threshold)*float64(stallMean)) + stallWindow
}
