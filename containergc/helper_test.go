package containergc_test

import (
	"time"

	"golang.org/x/sys/unix"
)

// lutimes sets the times of a link itself.
func lutimes(path string, at time.Time) error {
	tv := unix.NsecToTimeval(at.UnixNano())
	return unix.Lutimes(path, []unix.Timeval{tv, tv})
}
