//go:build unix && !linux

package diskusage

import "golang.org/x/sys/unix"

// blockSize returns the unit of the block counts in st.
func blockSize(st *unix.Statfs_t) uint64 { return uint64(st.Bsize) }

// isElsewhere returns false: it is not known.
func isElsewhere(int, string, uint64) bool { return false }
