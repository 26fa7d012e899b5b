package mounts

import (
	"errors"

	"golang.org/x/sys/unix"
)

func isRoot(fd int, path string) (is, known bool, err error) {
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	var st unix.Statx_t
	for {
		err = unix.Statx(fd, path, flags, 0, &st)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.ENOSYS) {
		return false, false, nil
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}
