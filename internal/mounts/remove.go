package mounts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrMounted is wrapped by the error of Remove about what stays because something
// is mounted there.
var ErrMounted = errors.New("has a mount of someone else's in it")

// Remove deletes names in the folder dir, whatever they are, and leaves what is
// mounted in them, with the way to it. What is not there is no error, be it dir
// itself. No link below dir is followed. It goes on where something fails and
// tells of the first few things that did.
func Remove(ctx context.Context, dir string, names ...string) error {
	top, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(top) }() // only read
	r := remover{ctx: ctx, top: dir, isRoot: isRoot}
	for _, name := range names {
		r.remove(top, filepath.Join(dir, name), name, 0)
	}
	return errors.Join(r.errs...)
}

// remover deletes a tree by descriptors, so that no link that is put in its way
// leads it elsewhere, and looks at each folder for a mount before it goes in.
type remover struct {
	ctx    context.Context // lives for one call of Remove
	top    string
	isRoot func(fd int, path string) (is, known bool, err error)
	table  map[string]bool // what is mounted, where the kernel does not tell folder by folder
	errs   []error
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
	err := unix.Unlinkat(parent, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return
	case errors.Is(err, unix.EBUSY): // a file that something is mounted on
		r.fail(path, fmt.Errorf("%w: %w", ErrMounted, err))
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
	if is, err := r.mounted(fd, path); is || err != nil {
		r.fail(path, cmp.Or(err, ErrMounted))
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

// mounted reports whether something is mounted on an open folder: what one sees
// in it is not what is below path on the disk.
func (r *remover) mounted(fd int, path string) (bool, error) {
	is, known, err := r.isRoot(fd, "")
	if known || err != nil {
		return is, err
	}
	if r.table == nil {
		if err := r.readTable(); err != nil {
			return false, err
		}
	}
	return r.table[path], nil
}

func (r *remover) readTable() error {
	real, err := filepath.EvalSymlinks(r.top)
	if err != nil {
		return err
	}
	points, err := Below(real)
	if err != nil {
		return err
	}
	r.table = make(map[string]bool, len(points))
	for _, p := range points {
		rel, err := filepath.Rel(real, p.Path)
		if err != nil {
			return err
		}
		r.table[filepath.Join(r.top, rel)] = true
	}
	return nil
}
