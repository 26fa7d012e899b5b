package mounts

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// IsRoot asks the kernel whether path is where something is mounted. A last part
// that is a link is not followed. It is false for what is not there; known is
// false where the kernel cannot tell.
func IsRoot(path string) (is, known bool, err error) {
	is, known, err = isRoot(unix.AT_FDCWD, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, true, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("look for a mount at %s: %w", path, err)
	}
	return is, known, nil
}

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
