package mounts

import (
	"errors"

	"golang.org/x/sys/unix"
)

func isRoot(fd int, path string) (is, known bool, err error) {
	st, err := statx(fd, path)
	if errors.Is(err, unix.ENOSYS) {
		return false, false, nil
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

// isFixed reports whether a file is immutable or append-only. Without a path it is that of fd.
func isFixed(fd int, path string) bool {
	st, err := statx(fd, path)
	return err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0
}

func statx(fd int, path string) (st unix.Statx_t, err error) {
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	for {
		err = unix.Statx(fd, path, flags, 0, &st)
		if !errors.Is(err, unix.EINTR) {
			return st, err
		}
	}
}
