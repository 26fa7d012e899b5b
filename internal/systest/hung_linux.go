package systest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// MountHung mounts a file system at a directory that answers no call: one of FUSE that no process serves. It lasts until remove is
// called, or the test ends. It skips the test where that cannot be.
func MountHung(t *testing.T, dir string) (remove func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("requires root and FUSE: %v", err)
	}
	if err := unix.Mount("hung", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		_ = unix.Close(fd) // nothing was written
		t.Skipf("requires root and FUSE: %v", err)
	}
	remove = sync.OnceFunc(func() {
		err := unix.Close(fd) // ends the calls that wait
		if err := errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)); err != nil {
			t.Errorf("remove the file system of %s: %v", dir, err)
		}
	})
	t.Cleanup(remove)
	return remove
}
