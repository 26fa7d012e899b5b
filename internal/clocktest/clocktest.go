// Package clocktest makes times that were read before the wall clock was set. A test
// cannot set the clock of its machine, and times in a synctest bubble have no
// monotonic reading.
package clocktest

import (
	"testing"
	"time"
	"unsafe"
)

// BeforeSetBack returns at as read by a wall clock that has since been set back by d:
// the monotonic reading is the same, and the wall clock is ahead by d, which must be
// less than a century. A negative d stands for a clock that was set forward. It skips
// the test if the representation of time.Time is not the known one. at must have a
// monotonic reading.
func BeforeSetBack(tb testing.TB, at time.Time, d time.Duration) time.Time {
	tb.Helper()
	type fields struct {
		wall uint64 // 1 bit: there is a monotonic reading; 33 bits: seconds; 30 bits: nanoseconds
		ext  int64
		loc  *time.Location
	}
	if at == at.Round(0) { //nolint:staticcheck // == compares the monotonic reading
		tb.Fatal("time has no monotonic reading, as in a bubble")
	}
	if unsafe.Sizeof(fields{}) != unsafe.Sizeof(at) {
		tb.Skip("unknown representation of time.Time")
	}
	then := at
	f := (*fields)(unsafe.Pointer(&then)) //nolint:gosec // checked below
	f.wall += uint64(int64(d/time.Second)) << 30
	if then.Sub(at) != 0 || then.Round(0).Sub(at.Round(0)) != d.Truncate(time.Second) {
		tb.Skip("unknown representation of time.Time")
	}
	return then
}
