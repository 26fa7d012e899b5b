package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/runtime"
)

// SubPath returns a path on the node for the subPath of a volume, which the runtime can
// mount into the container. Missing directories are created. Symbolic links are
// followed within the volume; one that leaves it is an error that wraps ErrUnsafe.
//
// As root the result is a bind mount of the file that was checked, so that changing the
// volume afterwards cannot redirect the runtime. Unmount removes it. Otherwise the
// result is the checked path itself.
//
// It must be called each time the container is created, because the target of the
// subPath may have changed, as in a ConfigMap.
func (m *Manager) SubPath(ctx context.Context, uid types.UID, container string, volume runtime.Volume, subPath string) (string, error) {
	if err := errors.Join(checkElement("uid", string(uid)), checkElement("container", container), ctx.Err()); err != nil {
		return "", err
	}
	if volume.HostPath == "" {
		return "", fmt.Errorf("subPath %q of a volume that is not a directory", subPath)
	}
	defer m.locks.lock(uid)()
	file, err := openSubPath(ctx, volume.HostPath, subPath)
	if err != nil {
		return "", fmt.Errorf("subPath %q of %s: %w", subPath, volume.HostPath, err)
	}
	defer func() { _ = unix.Close(file.fd) }() // opened with O_PATH
	if !m.mount.canMount() {
		return os.Readlink("/proc/self/fd/" + strconv.Itoa(file.fd))
	}
	path, err := m.bindSubPath(uid, container, volume, subPath, file)
	if err != nil {
		return "", fmt.Errorf("subPath %q of %s: %w", subPath, volume.HostPath, err)
	}
	return path, nil
}

// subPathFile is what a subPath leads to.
type subPathFile struct {
	fd    int // opened with O_PATH
	isDir bool
}

// openSubPath opens a subPath of a volume, whose server may not answer: what then waits is left behind when ctx is done, so that
// the pod can end.
func openSubPath(ctx context.Context, root, subPath string) (subPathFile, error) {
	type result struct {
		file subPathFile
		err  error
	}
	opened := make(chan result, 1)
	go func() {
		var r result
		r.file.fd, r.err = openInside(root, subPath)
		if r.err == nil {
			var st unix.Stat_t
			r.err = unix.Fstat(r.file.fd, &st)
			r.file.isDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
			if r.err != nil {
				_ = unix.Close(r.file.fd) // opened with O_PATH
			}
		}
		opened <- r
	}()
	select {
	case r := <-opened:
		return r.file, r.err
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				_ = unix.Close(r.file.fd) // opened with O_PATH
			}
		}()
		return subPathFile{}, ctx.Err()
	}
}

func (m *Manager) bindSubPath(uid types.UID, container string, volume runtime.Volume, subPath string, file subPathFile) (string, error) {
	dir, err := m.openPod(uid, true)
	if err != nil {
		return "", err
	}
	defer dir.close()
	rel := filepath.Join(subPathsDir, hashName(volume.HostPath), container, hashName(subPath))
	path := filepath.Join(dir.path, rel)
	if err := m.unmountSubPath(path); err != nil {
		return "", err
	}
	if err := target(dir, rel, file.isDir); err != nil {
		return "", err
	}
	return path, m.mount.bind(file.fd, path)
}

// unmountSubPath removes the mount of a previous SubPath call. Running containers keep
// their own mount.
func (m *Manager) unmountSubPath(path string) error {
	if is, known, err := mounts.IsRoot(path); known && !is || err != nil {
		return err
	}
	table, err := mounts.Below(path)
	if err != nil {
		return err
	}
	for range table {
		if err := m.mount.unmount(path, true); err != nil {
			return err
		}
	}
	return nil
}

// target creates the file or directory on which one can be mounted.
func target(dir *podDir, rel string, isDir bool) error {
	if err := dir.MkdirAll(filepath.Dir(rel), modeTraverse); err != nil {
		return err
	}
	if err := dir.Remove(rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if isDir {
		return dir.Mkdir(rel, modeTraverse)
	}
	return dir.WriteFile(rel, nil, 0o640)
}

// hashName returns a file name for a path.
func hashName(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:8])
}

// Limits for one path: followed symbolic links, as in the kernel, and depth, because a
// descriptor is open for each element.
const (
	maxLinks = 40
	maxDepth = 256
)

// openInside opens the file at path below the directory root for reference only
// (O_PATH), without leaving root. Missing directories are created with its mode.
func openInside(root, path string) (int, error) {
	if strings.HasPrefix(path, "/") {
		return -1, fmt.Errorf("must be a relative path: %w", ErrUnsafe)
	}
	top, err := unix.Open(root, openPath|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	w := walker{roots: []string{filepath.Clean(root)}, way: []int{top}}
	defer w.close()
	if to, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(top)); err == nil { // root may be a link
		w.roots = append(w.roots, to)
	}
	var st unix.Stat_t
	if err := unix.Fstat(top, &st); err != nil {
		return -1, err
	}
	w.mode = modeOf(&st) & 0o7777
	if err := w.walk(path); err != nil {
		return -1, err
	}
	return unix.FcntlInt(uintptr(w.at()), unix.F_DUPFD_CLOEXEC, 0)
}

// walker resolves a path one element at a time. The kernel never follows a symbolic
// link for it, so there is no race with a container that creates one. The element ".."
// returns to the previous descriptor.
type walker struct {
	roots []string // paths of the root
	way   []int    // descriptors from the root to the current directory
	links int
	mode  uint32
}

func (w *walker) at() int { return w.way[len(w.way)-1] }

func (w *walker) close() {
	for _, fd := range w.way {
		_ = unix.Close(fd) // opened with O_PATH
	}
}

func (w *walker) walk(path string) error {
	rest := strings.Split(path, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(w.way) == 1 {
				return ErrUnsafe
			}
			_ = unix.Close(w.at()) // opened with O_PATH
			w.way = w.way[:len(w.way)-1]
			continue
		}
		if len(w.way) > maxDepth {
			return fmt.Errorf("at %q: path is too deep", part)
		}
		fd, err := w.open(part)
		if err != nil {
			return fmt.Errorf("at %q: %w", part, err)
		}
		to, isLink, err := readLink(fd)
		if err != nil || !isLink {
			w.way = append(w.way, fd)
			if err != nil {
				return fmt.Errorf("at %q: %w", part, err)
			}
			continue
		}
		_ = unix.Close(fd) // opened with O_PATH
		if w.links++; w.links > maxLinks {
			return fmt.Errorf("at %q: %w", part, unix.ELOOP)
		}
		if strings.HasPrefix(to, "/") { // one that an administrator has made may lead into the volume
			rel, ok := inside(w.roots, to)
			if !ok {
				return fmt.Errorf("link %q is absolute: %w", part, ErrUnsafe)
			}
			to = rel
			w.back()
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return nil
}

// back returns to the root.
func (w *walker) back() {
	for _, fd := range w.way[1:] {
		_ = unix.Close(fd) // opened with O_PATH
	}
	w.way = w.way[:1]
}

// inside returns an absolute path relative to the one of roots with which it begins, and whether there is one.
func inside(roots []string, path string) (rel string, ok bool) {
	for _, root := range roots {
		if path == root {
			return "", true
		}
		if rel, ok = strings.CutPrefix(path, strings.TrimSuffix(root, "/")+"/"); ok {
			return rel, true
		}
	}
	return "", false
}

// open opens an element of the path, or creates it as a directory.
func (w *walker) open(part string) (int, error) {
	const flags = openPath | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(w.at(), part, flags, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := unix.Mkdirat(w.at(), part, w.mode&0o777); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	// The umask may have removed mode bits. They are restored only on what is
	// certainly a directory and not a link.
	dir, err := unix.Openat(w.at(), part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Fchmod(dir, w.mode)
	_ = unix.Close(dir) // opened with O_PATH
	if err != nil {
		return -1, err
	}
	return unix.Openat(w.at(), part, flags, 0)
}

// readLink returns the target of the symbolic link that fd refers to, if it is one.
func readLink(fd int) (to string, isLink bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", false, nil
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", true, err
	}
	return string(buf[:n]), true, nil
}
