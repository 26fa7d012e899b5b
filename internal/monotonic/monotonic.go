// Package monotonic places times that another clock has read, a runtime's, an API
// server's or a file's, on this process's monotonic clock. A wall clock that is
// set by hours later on changes nothing about when they are due, or how long ago
// they were.
//
// A time is to be placed once, when it arrives: placed again after the clock was
// set, it lies elsewhere.
package monotonic

import "time"

// At returns t with a monotonic reading: as far from now as the wall clock says
// that t is. The zero time stays zero, and a time that has a monotonic reading
// keeps it. now must have one.
func At(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(t.Sub(now))
}

// Past is At for the time of what has happened already. One that lies in the
// future was read before the clock was set back; the result is now then.
func Past(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return At(t, now)
}
