//go:build unix

package diskusage

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// Device measures a block device: its size is its capacity, and what is used of it is not known.
func Device(path string) (runtime.FSUsage, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // the path of an administrator
	if err != nil {
		return runtime.FSUsage{}, err
	}
	defer func() { _ = f.Close() }() // only read
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return runtime.FSUsage{}, fmt.Errorf("size of a device: %w", err)
	}
	return runtime.FSUsage{At: time.Now(), CapacityBytes: uint64(max(size, 0))}, nil
}
