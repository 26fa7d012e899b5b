package diskusage

import "golang.org/x/sys/unix"

// blockSize returns the unit of the block counts in st.
func blockSize(st *unix.Statfs_t) uint64 {
	if st.Frsize > 0 {
		return uint64(st.Frsize)
	}
	return uint64(max(st.Bsize, 0))
}

// isElsewhere reports whether a file of a directory is known to be on another device. It does not ask that, which may never answer.
func isElsewhere(dir int, name string, device uint64) bool {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	var st unix.Statx_t
	return unix.Statx(dir, name, flags, 0, &st) == nil && unix.Mkdev(st.Dev_major, st.Dev_minor) != device
}
