package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Unmount takes the volumes of a pod away, whose containers are gone: it
// unmounts what this package mounts and deletes the folders. A pod without
// volumes is no error. What is mounted there by somebody else stays as it is,
// with the way to it, and is named in an error that wraps ErrForeignMount. The
// pod's folder itself goes if it is empty then.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	if err := element("uid", string(uid)); err != nil {
		return err
	}
	defer m.locks.lock(uid)()
	dir, err := m.openPod(uid, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	if err := m.unmountAll(ctx, dir); err != nil {
		return fmt.Errorf("volumes of pod %s: %w", uid, err)
	}
	if err := removeTree(ctx, dir.path, subPathsDir, volumesDir); err != nil {
		return fmt.Errorf("volumes of pod %s: %w", uid, err)
	}
	// Others keep things in the folder too: the last one out takes it away.
	err = os.Remove(dir.path)
	if err == nil || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("folder of pod %s: %w", uid, err)
}

// unmountAll takes off what is ours, the last mounted first.
func (m *Manager) unmountAll(ctx context.Context, dir *podDir) error {
	mounts, err := mountsBelow(dir.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, mp := range slices.Backward(mounts) {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		rel, _ := filepath.Rel(dir.path, mp.path)
		switch {
		case isSubPathMount(rel):
			errs = append(errs, m.mount.unmount(mp.path, true))
		case isMemoryVolume(rel) && mp.fsType == "tmpfs":
			errs = append(errs, m.mount.unmount(mp.path, false))
		}
	}
	return errors.Join(errs...)
}

// isSubPathMount: volume-subpaths/<volume>/<container>/<mount>.
func isSubPathMount(rel string) bool {
	parts := strings.Split(rel, "/")
	return len(parts) == 4 && parts[0] == subPathsDir
}

// isMemoryVolume: volumes/<plugin>/<name> of a plugin that mounts memory.
func isMemoryVolume(rel string) bool {
	parts := strings.Split(rel, "/")
	return len(parts) == 3 && parts[0] == volumesDir &&
		(parts[1] == pluginEmptyDir || parts[1] == pluginSecret || parts[1] == pluginProjected)
}

// removeTree deletes names in the folder dir, whatever they are, and leaves
// what is mounted in them.
func removeTree(ctx context.Context, dir string, names ...string) error {
	mounts, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	r := remover{ctx: ctx, foreign: make(map[string]bool, len(mounts))}
	for _, mp := range mounts {
		r.foreign[mp.path] = true
	}
	top, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(top) }() // only read
	for _, name := range names {
		r.remove(top, filepath.Join(dir, name), name, 0)
	}
	return errors.Join(r.errs...)
}

// remover deletes a tree by descriptors, so that no link that is put in its way
// leads it elsewhere, and looks at each folder for a mount before it goes in:
// one can have come since the table was read.
type remover struct {
	ctx     context.Context // lives for one call of removeTree
	foreign map[string]bool
	errs    []error
}

const (
	maxRemoveDepth  = 512 // descriptors are held open on the way down
	maxRemoveErrors = 10
)

func (r *remover) fail(path string, err error) {
	if len(r.errs) < maxRemoveErrors {
		r.errs = append(r.errs, fmt.Errorf("remove %s: %w", path, err))
	}
}

func (r *remover) remove(parent int, path, name string, depth int) {
	if err := r.ctx.Err(); err != nil {
		if !slices.ContainsFunc(r.errs, func(e error) bool { return errors.Is(e, err) }) {
			r.errs = append(r.errs, err)
		}
		return
	}
	if r.foreign[path] {
		r.fail(path, ErrForeignMount)
		return
	}
	err := unix.Unlinkat(parent, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		r.fail(path, err)
		return
	}
	if r.empty(parent, path, name, depth) {
		if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
			r.fail(path, err)
		}
	}
}

// empty deletes what is in a folder and reports whether all of it went.
func (r *remover) empty(parent int, path, name string, depth int) bool {
	before := len(r.errs)
	fd, err := openDir(parent, name)
	if err != nil {
		r.fail(path, err)
		return false
	}
	dir := os.NewFile(uintptr(fd), path)
	defer func() { _ = dir.Close() }() // only read
	if isMountRoot(fd) {
		r.fail(path, ErrForeignMount)
		return false
	}
	if depth > maxRemoveDepth {
		r.fail(path, errors.New("is too deep"))
		return false
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		r.fail(path, err)
		return false
	}
	for _, child := range names {
		r.remove(fd, path+"/"+child, child, depth+1)
	}
	return len(r.errs) == before
}

// openDir opens a folder that its owner may have closed to everybody.
func openDir(parent int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(parent, name, flags, 0)
	if !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	if err := unix.Fchmodat(parent, name, 0o700, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, err
	}
	return unix.Openat(parent, name, flags, 0)
}

// isMountRoot asks the kernel about an open folder. Kernels before 5.8 do not
// know; the mount table that was read before is all there is then.
func isMountRoot(fd int) bool {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
