//go:build unix

package diskusage

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// FileSystem measures the file system that contains path, with the statfs system call. Space that is
// reserved for root is not available. It does not say where the file system is: neither Mountpoint
// nor Device is set.
func FileSystem(path string) (runtime.FSUsage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return runtime.FSUsage{}, fmt.Errorf("statfs %s: %w", path, err)
	}
	return usage(&st), nil
}

func usage(st *unix.Statfs_t) runtime.FSUsage {
	size := blockSize(st)
	files := amount(int64(st.Files)) //nolint:gosec // all bits are set where there is no limit, as in a hugetlbfs
	return runtime.FSUsage{
		At: time.Now(), CapacityBytes: st.Blocks * size, AvailableBytes: amount(st.Bavail) * size,
		UsedBytes: (st.Blocks - min(st.Bfree, st.Blocks)) * size,
		Inodes:    files, InodesUsed: files - min(amount(st.Ffree), files),
	}
}

// amount returns a number of blocks or inodes. Some systems report less than none where what is reserved for root is in use.
func amount[T int64 | uint64](n T) uint64 { return uint64(max(n, 0)) }
