//go:build unix

package systest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time that this process has used, in user mode and in the kernel.
func CPUTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
