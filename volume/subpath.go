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

// SubPath returns a path on the node for the part subPath of a volume, which
// the runtime can mount into the container. Missing folders on the way are
// made. Links in the volume are followed as long as they stay in the volume;
// ones that leave it are an error that wraps ErrUnsafe.
//
// As root the path is a mount that holds on to what was found, so that whoever
// changes the volume afterwards cannot lead the runtime elsewhere; Unmount takes
// it away. Otherwise it is the path itself, checked.
//
// It is called anew each time the container is made: what the subPath means may
// have changed since, as it does in a ConfigMap.
func (m *Manager) SubPath(ctx context.Context, uid types.UID, container string, volume runtime.Volume, subPath string) (string, error) {
	if err := errors.Join(element("uid", string(uid)), element("container", container), ctx.Err()); err != nil {
		return "", err
	}
	if volume.HostPath == "" {
		return "", fmt.Errorf("subPath %q: of a volume that is no folder", subPath)
	}
	defer m.locks.lock(uid)()
	fd, err := openInside(volume.HostPath, subPath)
	if err != nil {
		return "", fmt.Errorf("subPath %q of %s: %w", subPath, volume.HostPath, err)
	}
	defer func() { _ = unix.Close(fd) }() // refers only
	if !m.mount.canMount() {
		return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	}
	path, err := m.bindSubPath(uid, container, volume, subPath, fd)
	if err != nil {
		return "", fmt.Errorf("subPath %q of %s: %w", subPath, volume.HostPath, err)
	}
	return path, nil
}

func (m *Manager) bindSubPath(uid types.UID, container string, volume runtime.Volume, subPath string, fd int) (string, error) {
	dir, err := m.openPod(uid, true)
	if err != nil {
		return "", err
	}
	defer dir.close()
	rel := filepath.Join(subPathsDir, short(volume.HostPath), container, short(subPath))
	path := filepath.Join(dir.path, rel)
	if err := m.unmountSubPath(path); err != nil {
		return "", err
	}
	if err := target(dir, rel, fd); err != nil {
		return "", err
	}
	return path, m.mount.bind(fd, path)
}

// unmountSubPath undoes a former SubPath. A container that has it keeps its own mount.
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

// target makes the file or folder that fd can be mounted on.
func target(dir *podDir, rel string, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := dir.MkdirAll(filepath.Dir(rel), modeTraverse); err != nil {
		return err
	}
	if err := dir.Remove(rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return dir.Mkdir(rel, modeTraverse)
	}
	return dir.WriteFile(rel, nil, 0o640)
}

// short is a file name for a path.
func short(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:8])
}

// Bounds of one path: how many links it may follow, as the kernel has it, and
// how deep it may go, as a descriptor is held open for each part.
const (
	maxLinks = 40
	maxDepth = 256
)

// openInside opens what path leads to from the folder root without leaving it,
// for reference only (O_PATH). Missing folders are made with the mode of root.
func openInside(root, path string) (int, error) {
	if strings.HasPrefix(path, "/") {
		return -1, fmt.Errorf("must be a relative path: %w", ErrUnsafe)
	}
	top, err := unix.Open(root, openPath|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	w := walker{way: []int{top}}
	defer w.close()
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

// walker goes through a tree one part of a path at a time. It never lets the
// kernel follow a link, so there is no moment at which one could be put in its
// way; going up is going back the way it came.
type walker struct {
	way   []int // descriptors from the root to where it stands
	links int
	mode  uint32
}

func (w *walker) at() int { return w.way[len(w.way)-1] }

func (w *walker) close() {
	for _, fd := range w.way {
		_ = unix.Close(fd) // refers only
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
			_ = unix.Close(w.at()) // refers only
			w.way = w.way[:len(w.way)-1]
			continue
		}
		if len(w.way) > maxDepth {
			return fmt.Errorf("at %q: is too deep", part)
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
		_ = unix.Close(fd) // refers only
		if w.links++; w.links > maxLinks {
			return fmt.Errorf("at %q: %w", part, unix.ELOOP)
		}
		if strings.HasPrefix(to, "/") {
			return fmt.Errorf("link %q is absolute: %w", part, ErrUnsafe)
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return nil
}

// open opens a part, or makes it a folder.
func (w *walker) open(part string) (int, error) {
	const flags = openPath | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(w.at(), part, flags, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := unix.Mkdirat(w.at(), part, w.mode&0o777); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	// The umask may have taken bits away. Only what is certainly a folder, and
	// no link, gets them back.
	dir, err := unix.Openat(w.at(), part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Fchmod(dir, w.mode)
	_ = unix.Close(dir) // refers only
	if err != nil {
		return -1, err
	}
	return unix.Openat(w.at(), part, flags, 0)
}

// readLink reads the link that fd refers to, if it is one.
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
