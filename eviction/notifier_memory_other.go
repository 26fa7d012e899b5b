//go:build !linux

package eviction

import (
	"errors"
	"fmt"
	"os"
)

// register is unsupported: memory thresholds need cgroup v1.
func register(string, uint64) (*os.File, error) {
	return nil, fmt.Errorf("memory threshold: %w", errors.ErrUnsupported)
}
