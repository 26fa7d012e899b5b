// Package monotonic converts times from other clocks, such as those of a runtime, an API
// server or a file, to the monotonic clock of this process. Setting the wall clock
// later does not change how long ago they were.
//
// A time must be converted once, when it arrives. A conversion after the wall clock was
// set has another result.
package monotonic

import "time"

// At returns t with a monotonic reading, at the same distance from now as on the wall
// clock. The zero time stays zero, and an existing monotonic reading is kept. now must
// have one.
func At(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(t.Sub(now))
}

// Past is At for a time in the past. A time in the future was read before the clock was
// set back; the result is then now.
func Past(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return At(t, now)
}
