// Package fsgroup gives the files of a volume to the fsGroup of a pod.
package fsgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
)

// Permission bits that files and directories get in addition, as with the kubelet.
const (
	fileBits = 0o660
	dirBits  = 0o770 | unix.S_ISGID
)

// maxDepth bounds the directories in directories: a descriptor is open for each.
const maxDepth = 512

// ChangePolicy returns the fsGroupChangePolicy of a pod.
func ChangePolicy(pod *corev1.Pod) corev1.PodFSGroupChangePolicy {
	if sc := pod.Spec.SecurityContext; sc != nil && sc.FSGroupChangePolicy != nil {
		return *sc.FSGroupChangePolicy
	}
	return corev1.FSGroupChangeAlways
}

// Apply makes gid the group of the directory at path and of everything in it, lets the
// group read and write, and new files inherit it. With OnRootMismatch nothing is done if
// the directory itself is so already.
//
// A file that cannot be changed, as with an NFS server that squashes root, stays as it is, and
// one warning says how many did: a pod may need none of them. A nil log discards it.
//
// Containers may have written to the directory and may do so meanwhile: symbolic links are
// not followed, and devices and pipes are not opened.
func Apply(ctx context.Context, path string, gid int64, policy corev1.PodFSGroupChangePolicy, log *slog.Logger) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	w := walker{ctx: ctx, gid: int(gid)}
	if policy == corev1.FSGroupChangeOnRootMismatch {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && isComplete(&st, gid) {
			return unix.Close(fd)
		}
	}
	err = w.dir(fd, path, 0)
	if w.unchanged > 0 && log != nil {
		log.Warn("volume files not given to the group", slog.String("path", path), slog.Int64("group", gid), slog.Int("files", w.unchanged), logattr.Err(w.firstErr))
	}
	if err != nil {
		return fmt.Errorf("give the volume to group %d: %w", gid, err)
	}
	return nil
}

// IsApplied reports whether Apply has given the directory at path to the group, with all that was in it then.
func IsApplied(path string, gid int64) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && isComplete(&st, gid)
}

// isComplete reports whether a directory is as Apply leaves it, which changes it last.
func isComplete(st *unix.Stat_t, gid int64) bool {
	return int64(st.Gid) == gid && uint32(st.Mode)&dirBits == dirBits //nolint:unconvert // uint16 on other systems
}

type walker struct {
	ctx context.Context // lives for one call of Apply
	gid int

	unchanged int   // files that keep their group or mode
	firstErr  error // of unchanged
}

// keep notes that a file keeps its group or mode.
func (w *walker) keep(op, path string, err error) {
	w.unchanged++
	if w.firstErr == nil {
		w.firstErr = &os.PathError{Op: op, Path: path, Err: err}
	}
}

// dir changes the directory fd, which it closes, after what is in it: a directory with the
// group is complete.
func (w *walker) dir(fd int, path string, depth int) error {
	d := os.NewFile(uintptr(fd), path)
	defer func() { _ = d.Close() }() // only read
	if depth > maxDepth {
		return fmt.Errorf("%s: more than %d directories deep", path, maxDepth)
	}
	for {
		entries, err := d.ReadDir(256)
		for _, e := range entries {
			if err := w.ctx.Err(); err != nil {
				return err
			}
			if err := w.entry(fd, e.Name(), filepath.Join(path, e.Name()), depth); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	return w.change(fd, path, dirBits)
}

func (w *walker) entry(parent int, name, path string, depth int) error {
	fd, err := unix.Openat(parent, name, openPath|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errors.Join(&os.PathError{Op: "stat", Path: path, Err: err}, unix.Close(fd))
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		_ = unix.Close(fd) // opened with O_PATH
		fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil // replaced by its container, which is none of this pod
		}
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		return w.dir(fd, path, depth+1)
	case unix.S_IFLNK:
		if err := chown(fd, w.gid); err != nil {
			w.keep("chown", path, err)
		}
	default:
		err = w.change(fd, path, fileBits)
	}
	_ = unix.Close(fd) // opened with O_PATH
	return err
}

// change sets the group and adds permission bits, by descriptor. Another group than the
// wanted one gets no bits. A file that gets a group, even its own, loses setuid, setgid and its
// capabilities: one that has the group is left alone, and others get these bits back.
func (w *walker) change(fd int, path string, bits uint32) error {
	var before, st unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	st = before
	if int(before.Gid) != w.gid {
		chownErr := chown(fd, w.gid)
		if err := unix.Fstat(fd, &st); err != nil {
			return &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if chownErr != nil && int(st.Gid) != w.gid {
			w.keep("chown", path, chownErr)
			return nil
		}
	}
	mode := uint32(before.Mode)&0o7777 | bits //nolint:unconvert // uint16 on other systems
	if uint32(st.Mode)&0o7777 == mode {       //nolint:unconvert // as above
		return nil
	}
	// A descriptor opened with O_PATH has no fchmod.
	if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode); err != nil {
		w.keep("chmod", path, err)
	}
	return nil
}
