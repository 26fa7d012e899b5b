package imagegc

import (
	"github.com/sublet-dev/agent/internal/diskusage"
	"github.com/sublet-dev/agent/runtime"
)

// statfs measures the file system of a path.
func statfs(path string) (runtime.FSUsage, error) {
	u, err := diskusage.FileSystem(path)
	if err == nil {
		u.Mountpoint = path
	}
	return u, err
}
