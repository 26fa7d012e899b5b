package diskusage

import "golang.org/x/sys/unix"

// blockSize returns the unit of the block counts in st.
func blockSize(st *unix.Statfs_t) uint64 {
	if st.Frsize > 0 {
		return uint64(st.Frsize)
	}
	return uint64(max(st.Bsize, 0))
}
