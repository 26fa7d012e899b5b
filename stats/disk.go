package stats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/diskusage"
	"github.com/sublet-dev/agent/runtime"
)

// Statfs measures the file system that contains path, with the statfs system call. It is
// the default of Config.Statfs.
func Statfs(path string) (runtime.FSUsage, error) {
	u, err := diskusage.FileSystem(path)
	if err != nil {
		return runtime.FSUsage{}, err
	}
	var node unix.Stat_t
	if err := unix.Stat(path, &node); err != nil {
		return runtime.FSUsage{}, fmt.Errorf("stat %s: %w", path, err)
	}
	u.Mountpoint, u.Device = path, deviceOf(&node)
	return u, nil
}

// logDirs returns the log directories of a pod by container name. A pod without logs has
// none.
func logDirs(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := make(map[string]string, len(entries))
	for _, e := range entries {
		if e.IsDir() {
			out[e.Name()] = filepath.Join(dir, e.Name())
		}
	}
	return out, nil
}
