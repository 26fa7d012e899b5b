package systest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Flags of files that even root cannot change while they are set, as chattr sets them.
const (
	Immutable  = 0x10 // FS_IMMUTABLE_FL: not at all
	AppendOnly = 0x20 // FS_APPEND_FL: except at the end
)

// Fix sets the flags of a file until the test ends. It skips the test on a file system without them.
func Fix(t *testing.T, path string, flags int) {
	t.Helper()
	set := func(flags int) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	if err := set(flags); err != nil {
		t.Skipf("requires a file system with immutable files for its temporary files: %v", err)
	}
	t.Cleanup(func() {
		if err := set(0); err != nil {
			t.Errorf("flags of %s: %v", path, err)
		}
	})
}
