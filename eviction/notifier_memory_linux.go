package eviction

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// register registers a memory threshold in the kernel and returns its eventfd.
func register(dir string, at uint64) (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	event := os.NewFile(uintptr(fd), "memory threshold")
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		return nil, errors.Join(err, event.Close())
	}
	defer usage.Close() //nolint:errcheck // the kernel holds its own reference
	line := fmt.Sprintf("%d %d %d", fd, usage.Fd(), at)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(line), 0); err != nil {
		return nil, errors.Join(err, event.Close())
	}
	return event, nil
}
