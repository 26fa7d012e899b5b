//go:build !linux

package imagegc

import (
	"fmt"

	"github.com/sublet-dev/agent/runtime"
)

func statfs(path string) (runtime.FSUsage, error) {
	return runtime.FSUsage{}, fmt.Errorf("statfs %s: %w", path, runtime.ErrUnsupported)
}
