package volume

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// mounter is what is asked of the kernel.
type mounter interface {
	// able reports whether anything can be mounted at all.
	able() bool
	// tmpfs mounts memory on the folder path.
	tmpfs(path string, o memory) error
	// bind mounts what the descriptor fd refers to on path.
	bind(fd int, path string) error
	// unmount takes the topmost mount off path; a lazy one also while it is used.
	unmount(path string, lazy bool) error
}

// memory is how a tmpfs is to be.
type memory struct {
	bytes int64 // 0: the kernel's default, half of the memory
	mode  uint32
	gid   *int64
}

func (o memory) options(more string) string {
	s := "mode=" + strconv.FormatUint(uint64(o.mode), 8) + more
	if o.bytes > 0 {
		s += ",size=" + strconv.FormatInt(o.bytes, 10)
	}
	if o.gid != nil {
		s += ",gid=" + strconv.FormatInt(*o.gid, 10)
	}
	return s
}

type kernel struct{}

func (kernel) able() bool { return true }

// tmpfs keeps the memory out of swap where the kernel can (6.4 and later), so
// that no secret gets onto a disk.
func (kernel) tmpfs(path string, o memory) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	err := unix.Mount("tmpfs", path, "tmpfs", flags, o.options(",noswap"))
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", path, "tmpfs", flags, o.options(""))
	}
	return mountError("mount memory on", path, err)
}

func (kernel) bind(fd int, path string) error {
	// The descriptor holds on to what was looked at, whatever is renamed since.
	err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), path, "", unix.MS_BIND, "")
	return mountError("bind to", path, err)
}

func (kernel) unmount(path string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	return mountError("unmount", path, unix.Unmount(path, flags))
}

func mountError(what, path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s %s: %w: %w", what, path, ErrPrivilege, err)
	}
	return fmt.Errorf("%s %s: %w", what, path, err)
}

// noMounts stands in where nothing can be mounted.
type noMounts struct{}

func (noMounts) able() bool                     { return false }
func (noMounts) tmpfs(p string, _ memory) error { return mountError("mount memory on", p, unix.EPERM) }
func (noMounts) bind(_ int, p string) error     { return mountError("bind to", p, unix.EPERM) }
func (noMounts) unmount(p string, _ bool) error { return mountError("unmount", p, unix.EPERM) }
