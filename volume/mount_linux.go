package volume

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/mounts"
)

// osMounter mounts with system calls.
type osMounter struct{}

func (osMounter) canMount() bool { return true }

// tmpfs uses noswap where the kernel supports it (6.4 and later), so that secrets are
// not written to disk.
func (osMounter) tmpfs(path string, o tmpfsOptions) error {
	var flags uintptr
	if o.plain {
		flags = unix.MS_NOSUID | unix.MS_NODEV
	}
	err := unix.Mount("tmpfs", path, "tmpfs", flags, o.options(",noswap"))
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", path, "tmpfs", flags, o.options(""))
	}
	return mountError("mount tmpfs on", path, err)
}

func (osMounter) hugetlbfs(path string, o hugetlbfsOptions) error {
	err := unix.Mount("nodev", path, "hugetlbfs", 0, o.options())
	switch {
	case errors.Is(err, unix.ENODEV):
		err = fmt.Errorf("the kernel of the node has no huge pages: %w", err)
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("the node may have no huge pages of %d bytes: %w", o.pageSize, err)
	}
	return mountError("mount hugetlbfs on", path, err)
}

func (osMounter) bind(fd int, path string) error {
	// The descriptor refers to the file that was checked, even after a rename.
	err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), path, "", unix.MS_BIND, "")
	return mountError("bind mount on", path, err)
}

func (osMounter) unmount(path string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(path, flags)
	if errors.Is(err, unix.EINVAL) {
		// Below a shared mount that is bound to its own directory each mount is there twice, and one unmount removes both.
		if is, known, _ := mounts.IsRoot(path); known && !is {
			return nil
		}
	}
	return mountError("unmount", path, err)
}

// openPath opens a file for reference only.
const openPath = unix.O_PATH

func modeOf(st *unix.Stat_t) uint32 { return st.Mode }
