package hostprocess

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/mounts"
)

// reroot mounts a tmpfs over "/", with the entries of "/", and makes it the root of the
// thread. With readonly the entries are read-only, except those that runtimes mount
// themselves.
func (b *mounter) reroot(readonly bool) error {
	host, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(host) }()
	root, err := b.tmpfs(host)
	if err != nil {
		return err
	}
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return mirror(host, root, func(name string) bool {
		return readonly && !slices.Contains([]string{"dev", "proc", "sys"}, name)
	})
}

// place returns a descriptor of the mount point, and creates the mount point if it does
// not exist.
func (b *mounter) place(at string, dir bool) (int, error) {
	const flags = unix.O_PATH | unix.O_CLOEXEC
	target, err := unix.Open(at, flags, 0)
	if !errors.Is(err, unix.ENOENT) {
		return target, named(at, err)
	}
	above := at
	var fd int
	for err = unix.ENOENT; errors.Is(err, unix.ENOENT) && above != "/"; {
		above = filepath.Dir(above)
		fd, err = unix.Open(above, flags|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return -1, named(above, err)
	}
	defer func() { _ = unix.Close(fd) }()
	missing := strings.Split(strings.Trim(strings.TrimPrefix(at, above), "/"), "/")
	if b.own(fd) {
		target, err := makePlace(fd, missing, dir)
		if !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			return target, named(at, err)
		}
	}
	copied, err := b.overlayTmpfs(fd)
	if err != nil {
		return -1, named(above, err)
	}
	target, err = makePlace(copied, missing, dir)
	return target, named(at, err)
}

// named adds the path to an error.
func named(path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: "create mount point", Path: path, Err: err}
}

// own reports whether a directory is the container's: a tmpfs or a volume.
func (b *mounter) own(fd int) bool {
	var st, memory unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false
	}
	for _, m := range b.memory {
		if unix.Fstat(m, &memory) == nil && memory.Dev == st.Dev {
			return true
		}
	}
	id, err := mounts.ID(fd, "")
	return err == nil && b.volumes[id]
}

// makePlace creates the directories of a path below from, none of which exists, and at
// its end one more or a file. No link is followed.
func makePlace(from int, path []string, dir bool) (int, error) {
	fd, err := unix.Dup(from)
	if err != nil {
		return -1, err
	}
	for i, name := range path {
		last := i == len(path)-1
		next, err := makeEntry(fd, name, dir || !last)
		_ = unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// makeEntry creates a directory or a file, if it does not exist, and returns its
// descriptor.
func makeEntry(in int, name string, dir bool) (int, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if dir {
		if err := unix.Mkdirat(in, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
		return unix.Openat(in, name, flags|unix.O_DIRECTORY, 0)
	}
	if err := unix.Mknodat(in, name, unix.S_IFREG|0o644, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, err := unix.Openat(in, name, flags, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, errors.Join(unix.EEXIST, unix.Close(fd)) // such as a dangling link
	}
	return fd, nil
}

// overlayTmpfs mounts a tmpfs over dir, with the same entries, and returns its
// descriptor, which close closes.
func (b *mounter) overlayTmpfs(dir int) (int, error) {
	fd, err := b.tmpfs(dir)
	if err != nil {
		return -1, err
	}
	return fd, mirror(dir, fd, func(string) bool { return false })
}

// tmpfs mounts a tmpfs on dir, with the same owner and mode. The returned descriptor is
// b's.
func (b *mounter) tmpfs(dir int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return -1, err
	}
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("tmpfs: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	for _, o := range [][2]string{
		{"source", "sublet"},
		{"size", "64m"},
		{"mode", fmt.Sprintf("%o", st.Mode&0o7777)},
		{"uid", fmt.Sprint(st.Uid)},
		{"gid", fmt.Sprint(st.Gid)},
	} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("tmpfs option %s: %w", o[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("tmpfs: %w", err)
	}
	attr := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if unix.Fstatat(dir, "ptmx", &st, unix.AT_SYMLINK_NOFOLLOW) == nil && makesTerminals(&st) {
		attr = unix.MOUNT_ATTR_NOSUID
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("tmpfs: %w", err)
	}
	b.memory = append(b.memory, fd)
	if err := attach(fd, dir, ""); err != nil {
		return -1, fmt.Errorf("tmpfs: %w", err)
	}
	return fd, nil
}

// mirror mounts every entry of one directory in another, read-only where readonly
// returns true. Entries that are removed meanwhile are skipped.
func mirror(from, to int, readonly func(name string) bool) error {
	fd, err := unix.Openat(from, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	list := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = list.Close() }() // only read
	names, err := list.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := mirrorEntry(from, to, name, readonly(name)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("mirror %q: %w", name, err)
		}
	}
	return nil
}

func mirrorEntry(from, to int, name string, readonly bool) error {
	st, err := statEntry(from, name)
	if err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(from, name, buf)
		if err != nil {
			return err
		}
		return unix.Symlinkat(string(buf[:n]), to, name)
	}
	if makesTerminals(&st) && unix.Mknodat(to, name, st.Mode, int(st.Rdev)) == nil {
		return errors.Join(unix.Fchownat(to, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW),
			unix.Fchmodat(to, name, st.Mode&0o7777, 0))
	}
	tree, err := openTree(from, name, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(tree) }()
	if readonly {
		if err := setReadonly(tree, unix.AT_RECURSIVE); err != nil {
			return err
		}
	}
	at, err := makeEntry(to, name, kind == unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	return attach(tree, at, "")
}

// statEntry returns what the kernel knows of an entry. It does not ask the file system of a mount, which may never answer: any
// directory of the host can have one beside that in which a container has a volume.
func statEntry(dir int, name string) (unix.Stat_t, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	var st unix.Statx_t
	if err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS, &st); err != nil {
		return unix.Stat_t{}, err
	}
	return unix.Stat_t{Mode: uint32(st.Mode), Uid: st.Uid, Gid: st.Gid, Rdev: unix.Mkdev(st.Rdev_major, st.Rdev_minor)}, nil
}

// makesTerminals reports whether a file is the device /dev/ptmx. The kernel makes the terminal in
// the devpts beside the device in its own file system, so that a mount of it makes none.
func makesTerminals(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(5, 2)
}
