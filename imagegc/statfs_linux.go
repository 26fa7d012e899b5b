package imagegc

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// statfs measures the file system of a path. Space reserved for root is not available.
func statfs(path string) (runtime.FSUsage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return runtime.FSUsage{}, fmt.Errorf("statfs %s: %w", path, err)
	}
	block := uint64(s.Bsize) //nolint:gosec // a block size is positive
	return runtime.FSUsage{
		At: time.Now(), Mountpoint: path, CapacityBytes: s.Blocks * block, AvailableBytes: s.Bavail * block,
		UsedBytes: (s.Blocks - s.Bfree) * block, Inodes: s.Files, InodesUsed: s.Files - s.Ffree,
	}, nil
}
