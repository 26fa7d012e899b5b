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

// Modes of the parent directories of a volume. Containers use bind mounts, so no other
// user needs access.
const (
	modeTraverse = 0o750
	modeSecret   = 0o700 // parent of secrets that are not on a tmpfs
)

// podDir is the directory of a pod, opened so that no symbolic link leads out of it.
type podDir struct {
	*os.Root
	path string // without symbolic links, as in the mount table
}

func (d *podDir) close() {
	if d != nil {
		_ = d.Close() // only read
	}
}

// openPod opens the directory of a pod. If it does not exist, it is created or the error
// is fs.ErrNotExist.
func (m *Manager) openPod(uid types.UID, create bool) (*podDir, error) {
	pods := filepath.Join(m.cfg.Root, "pods")
	if create {
		if err := os.MkdirAll(pods, modeTraverse); err != nil {
			return nil, fmt.Errorf("create pods directory: %w", err)
		}
	}
	real, err := filepath.EvalSymlinks(pods)
	if err != nil {
		return nil, fmt.Errorf("resolve pods directory: %w", err)
	}
	all, err := os.OpenRoot(real)
	if err != nil {
		return nil, fmt.Errorf("open pods directory: %w", err)
	}
	defer func() { _ = all.Close() }() // only read
	if create {
		if err := all.Mkdir(string(uid), modeTraverse); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("create directory of pod %s: %w", uid, err)
		}
	}
	info, err := all.Lstat(string(uid))
	if err != nil {
		return nil, fmt.Errorf("directory of pod %s: %w", uid, err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("directory of pod %s: not a directory (link or file): %w", uid, ErrUnsafe)
	}
	root, err := all.OpenRoot(string(uid))
	if err != nil {
		return nil, fmt.Errorf("open directory of pod %s: %w", uid, err)
	}
	return &podDir{Root: root, path: filepath.Join(real, string(uid))}, nil
}

// ensureDir creates rel and its parents, and sets the mode of rel.
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
		return fmt.Errorf("%s: not a directory (link or file): %w", rel, ErrUnsafe)
	}
	if info.Mode().Perm() != mode {
		return d.Chmod(rel, mode)
	}
	return nil
}

// isMountPoint reports whether the directory rel is on another device than its parent,
// as a mount made by this package is.
func (d *podDir) isMountPoint(rel string) (bool, error) {
	var own, parent unix.Stat_t
	if err := unix.Lstat(filepath.Join(d.path, rel), &own); err != nil {
		return false, fmt.Errorf("stat %s: %w", rel, err)
	}
	if err := unix.Lstat(filepath.Join(d.path, filepath.Dir(rel)), &parent); err != nil {
		return false, fmt.Errorf("stat %s: %w", filepath.Dir(rel), err)
	}
	return own.Dev != parent.Dev, nil
}
