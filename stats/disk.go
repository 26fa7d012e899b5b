package stats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// Statfs reads how full the file system is that holds path.
func Statfs(path string) (runtime.FSUsage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return runtime.FSUsage{}, fmt.Errorf("statfs %s: %w", path, err)
	}
	var node unix.Stat_t
	if err := unix.Stat(path, &node); err != nil {
		return runtime.FSUsage{}, fmt.Errorf("stat %s: %w", path, err)
	}
	size := uint64(max(st.Frsize, 0))
	if size == 0 {
		size = uint64(max(st.Bsize, 0))
	}
	return runtime.FSUsage{
		At: time.Now(), Mountpoint: path, Device: node.Dev,
		CapacityBytes: st.Blocks * size, AvailableBytes: st.Bavail * size,
		UsedBytes: (st.Blocks - min(st.Bfree, st.Blocks)) * size,
		Inodes:    st.Files, InodesUsed: st.Files - min(st.Ffree, st.Files),
	}, nil
}

// fileID tells files apart that have several names.
type fileID struct{ dev, ino uint64 }

// count adds up what is below dir, on dir's own file system: what it takes up
// rather than how long the files are, and each file once. What goes away
// meanwhile does not count. A folder that is not there is empty.
func count(ctx context.Context, dir string) (runtime.DiskUsage, error) {
	u := runtime.DiskUsage{At: time.Now()}
	var root unix.Stat_t
	if err := unix.Lstat(dir, &root); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return u, nil
		}
		return runtime.DiskUsage{}, fmt.Errorf("stat %s: %w", dir, err)
	}
	seen := make(map[fileID]struct{})
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if n++; n%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil //nolint:nilerr // it went away
		}
		if st.Dev != root.Dev {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			id := fileID{st.Dev, st.Ino}
			if _, twice := seen[id]; twice {
				return nil
			}
			seen[id] = struct{}{}
		}
		u.Bytes += uint64(max(st.Blocks, 0)) * 512
		u.Inodes++
		return nil
	})
	if err != nil {
		return runtime.DiskUsage{}, fmt.Errorf("count %s: %w", dir, err)
	}
	return u, nil
}

// logFolders returns the folders of a pod's logs by container name.
func logFolders(dir string) (map[string]string, error) {
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
