//go:build !linux

package stats

import "golang.org/x/sys/unix"

// blockSize is the unit of a file system's figures.
func blockSize(st *unix.Statfs_t) uint64 { return uint64(st.Bsize) }

func deviceOf(st *unix.Stat_t) uint64 { return uint64(st.Dev) }
