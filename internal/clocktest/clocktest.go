// Package clocktest makes times as they are read before the wall clock is set. No
// test can set the clock of its machine, and the times of a bubble have no monotonic
// reading, so that nothing can be told apart there.
package clocktest

import (
	"testing"
	"time"
	"unsafe"
)

// BeforeSetBack returns at as it would have been read by a wall clock that has
// been set back by d since: its monotonic reading is the same, and its wall clock
// is ahead by d, which is less than a century. A negative d is for a clock that was
// set forward. It skips the test where package time keeps times in another way.
// at must have a monotonic reading.
func BeforeSetBack(tb testing.TB, at time.Time, d time.Duration) time.Time {
	tb.Helper()
	type fields struct {
		wall uint64 // 1 bit: there is a monotonic reading; 33 bits: seconds; 30 bits: nanoseconds
		ext  int64
		loc  *time.Location
	}
	if at == at.Round(0) { //nolint:staticcheck // == sees the monotonic reading
		tb.Fatal("no monotonic reading; in a bubble there is none")
	}
	if unsafe.Sizeof(fields{}) != unsafe.Sizeof(at) {
		tb.Skip("this version of Go keeps times in another way")
	}
	then := at
	f := (*fields)(unsafe.Pointer(&then)) //nolint:gosec // checked below
	f.wall += uint64(int64(d/time.Second)) << 30
	if then.Sub(at) != 0 || then.Round(0).Sub(at.Round(0)) != d.Truncate(time.Second) {
		tb.Skip("this version of Go keeps times in another way")
	}
	return then
}
