package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Modes of folders on the way to a volume. Containers get in by bind mounts, so
// that nobody else needs to pass.
const (
	modeTraverse = 0o750
	modeSecret   = 0o700 // around secrets that are not in memory
)

// podDir is a pod's folder, opened so that no link leads out of it.
type podDir struct {
	*os.Root
	path string // without links, as the mount table tells it
}

func (d *podDir) close() {
	if d != nil {
		_ = d.Close() // only looked through
	}
}

// openPod opens a pod's folder. A missing one is made, or is the error
// fs.ErrNotExist.
func (m *Manager) openPod(uid types.UID, create bool) (*podDir, error) {
	pods := filepath.Join(m.cfg.Root, "pods")
	if create {
		if err := os.MkdirAll(pods, modeTraverse); err != nil {
			return nil, fmt.Errorf("make the folder of pods: %w", err)
		}
	}
	real, err := filepath.EvalSymlinks(pods)
	if err != nil {
		return nil, fmt.Errorf("folder of pods: %w", err)
	}
	all, err := os.OpenRoot(real)
	if err != nil {
		return nil, fmt.Errorf("open the folder of pods: %w", err)
	}
	defer func() { _ = all.Close() }() // only looked through
	if create {
		if err := all.Mkdir(string(uid), modeTraverse); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make the folder of pod %s: %w", uid, err)
		}
	}
	info, err := all.Lstat(string(uid))
	if err != nil {
		return nil, fmt.Errorf("folder of pod %s: %w", uid, err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("folder of pod %s: is a link or file: %w", uid, ErrUnsafe)
	}
	root, err := all.OpenRoot(string(uid))
	if err != nil {
		return nil, fmt.Errorf("open the folder of pod %s: %w", uid, err)
	}
	return &podDir{Root: root, path: filepath.Join(real, string(uid))}, nil
}

// ensureDir makes the folders down to rel.
func (d *podDir) ensureDir(rel string, mode fs.FileMode) error {
	if err := d.MkdirAll(filepath.Dir(rel), modeTraverse); err != nil {
		return err
	}
	if err := d.Mkdir(rel, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := d.Lstat(rel)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s: is a link or file: %w", rel, ErrUnsafe)
	}
	if info.Mode().Perm() != mode {
		return d.Chmod(rel, mode)
	}
	return nil
}

// isMountPoint reports whether the folder rel is on another device than the one
// it stands in: all that can be if this package mounted it.
func (d *podDir) isMountPoint(rel string) (bool, error) {
	var own, parent unix.Stat_t
	if err := unix.Lstat(filepath.Join(d.path, rel), &own); err != nil {
		return false, fmt.Errorf("look at %s: %w", rel, err)
	}
	if err := unix.Lstat(filepath.Join(d.path, filepath.Dir(rel)), &parent); err != nil {
		return false, fmt.Errorf("look at %s: %w", filepath.Dir(rel), err)
	}
	return own.Dev != parent.Dev, nil
}
