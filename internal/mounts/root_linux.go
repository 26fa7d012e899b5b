package mounts

import (
	"errors"
	"strconv"

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

// statx returns what the kernel knows of a file. It does not ask the file system of a mount, which may never answer: a server
// of NFS that is gone, or a process that serves FUSE and hangs.
func statx(fd int, path string) (st unix.Statx_t, err error) {
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	for {
		err = unix.Statx(fd, path, flags, 0, &st)
		if !errors.Is(err, unix.EINTR) {
			return st, err
		}
	}
}

// allowAccess gives the owner all rights on a directory. A symbolic link is not followed: before Linux 6.6 chmod cannot leave one
// alone by itself.
func allowAccess(parent int, name string) error {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// A descriptor opened with O_PATH has no fchmod.
	return errors.Join(unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700), unix.Close(fd))
}
