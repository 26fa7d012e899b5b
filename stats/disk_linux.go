package stats

import "golang.org/x/sys/unix"

// blockSize is the unit of a file system's figures.
func blockSize(st *unix.Statfs_t) uint64 {
	if st.Frsize > 0 {
		return uint64(st.Frsize)
	}
	return uint64(max(st.Bsize, 0))
}

func deviceOf(st *unix.Stat_t) uint64 { return st.Dev }
