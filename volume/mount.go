package volume

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// mounter is what is asked of the kernel.
type mounter interface {
	// canMount reports whether anything can be mounted at all.
	canMount() bool
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

func (noMounts) canMount() bool                 { return false }
func (noMounts) tmpfs(p string, _ memory) error { return mountError("mount memory on", p, unix.EPERM) }
func (noMounts) bind(_ int, p string) error     { return mountError("bind to", p, unix.EPERM) }
func (noMounts) unmount(p string, _ bool) error { return mountError("unmount", p, unix.EPERM) }
