package volume

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// mounter is the interface to the mount operations of the kernel.
type mounter interface {
	// canMount reports whether the process may mount.
	canMount() bool
	// tmpfs mounts a tmpfs on the directory path.
	tmpfs(path string, o tmpfsOptions) error
	// hugetlbfs mounts a hugetlbfs on the directory path.
	hugetlbfs(path string, o hugetlbfsOptions) error
	// bind mounts the file or directory that fd refers to on path.
	bind(fd int, path string) error
	// unmount removes the topmost mount from path; lazy works while it is in use.
	unmount(path string, lazy bool) error
}

// tmpfsOptions are the options of a tmpfs.
type tmpfsOptions struct {
	bytes int64 // 0: half of the memory, the default of the kernel
	mode  uint32
	gid   *int64
	// plain is for a volume in which only this package makes files: there are neither devices nor
	// programs that change their user. Containers may make both in theirs.
	plain bool
}

func (o tmpfsOptions) options(more string) string {
	s := "mode=" + strconv.FormatUint(uint64(o.mode), 8) + more
	if o.bytes > 0 {
		s += ",size=" + strconv.FormatInt(o.bytes, 10)
	}
	if o.gid != nil {
		s += ",gid=" + strconv.FormatInt(*o.gid, 10)
	}
	return s
}

// hugetlbfsOptions are the options of a hugetlbfs.
type hugetlbfsOptions struct {
	pageSize int64
	bytes    int64 // 0: no limit. The kernel takes the whole pages of it
	mode     uint32
	gid      *int64
}

func (o hugetlbfsOptions) options() string {
	s := fmt.Sprintf("pagesize=%d,mode=%o", o.pageSize, o.mode)
	if o.bytes > 0 {
		s += ",size=" + strconv.FormatInt(o.bytes, 10)
	}
	if o.gid != nil {
		s += ",gid=" + strconv.FormatInt(*o.gid, 10)
	}
	return s
}

func mountError(operation, path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s %s: %w: %w", operation, path, ErrPrivilege, err)
	}
	return fmt.Errorf("%s %s: %w", operation, path, err)
}

// noMounts is the mounter of a process that may not mount.
type noMounts struct{}

func (noMounts) canMount() bool { return false }
func (noMounts) tmpfs(p string, _ tmpfsOptions) error {
	return mountError("mount tmpfs on", p, unix.EPERM)
}

func (noMounts) hugetlbfs(p string, _ hugetlbfsOptions) error {
	return mountError("mount hugetlbfs on", p, unix.EPERM)
}

func (noMounts) bind(_ int, p string) error     { return mountError("bind mount on", p, unix.EPERM) }
func (noMounts) unmount(p string, _ bool) error { return mountError("unmount", p, unix.EPERM) }
