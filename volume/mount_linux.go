package volume

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

type osMounter struct{}

func (osMounter) canMount() bool { return true }

// tmpfs keeps the memory out of swap where the kernel can (6.4 and later), so
// that no secret gets onto a disk.
func (osMounter) tmpfs(path string, o memory) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	err := unix.Mount("tmpfs", path, "tmpfs", flags, o.options(",noswap"))
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", path, "tmpfs", flags, o.options(""))
	}
	return mountError("mount memory on", path, err)
}

func (osMounter) bind(fd int, path string) error {
	// The descriptor holds on to what was looked at, whatever is renamed since.
	err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), path, "", unix.MS_BIND, "")
	return mountError("bind to", path, err)
}

func (osMounter) unmount(path string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	return mountError("unmount", path, unix.Unmount(path, flags))
}

// openPath opens a file for its name alone.
const openPath = unix.O_PATH

func modeOf(st *unix.Stat_t) uint32 { return st.Mode }
