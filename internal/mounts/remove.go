package mounts

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrMounted is wrapped by the error of Remove for a directory that stays because it
// contains a mount.
var ErrMounted = errors.New("contains a foreign mount")

// Remove deletes names in the directory dir recursively. Mounts in them are left, with
// their parent directories, and where the kernel says what is one, their servers need not
// answer. Missing files are not an error, including dir. Symbolic links below dir are not
// followed. Remove continues after an error and returns the first few.
//
// A container may have created the files: their depth, the length of paths and the
// number of entries are unlimited, and the memory and descriptors used by Remove do not
// depend on them. Directories that are too deep are moved up in the tree first, so a
// mount in them may stay at a shorter path.
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
		r.remove(top, name)
	}
	return errors.Join(r.errs...)
}

// remover deletes a tree by descriptors, so that a symbolic link created concurrently is
// not followed, and checks each directory for a mount before it enters it.
type remover struct {
	ctx    context.Context // lives for one call of Remove
	top    string
	way    []*level // the current directories, the outermost first
	isRoot func(fd int, path string) (is, known bool, err error)
	errs   []error
}

// level is a directory that is being emptied.
type level struct {
	name    string
	dir     *os.File
	mountID []byte // only if statx cannot identify mounts
	failed  bool   // an entry could not be removed
	opened  bool   // its mode was changed
}

func (l *level) fd() int { return int(l.dir.Fd()) }

const (
	maxRemoveDepth  = 64 // number of open descriptors
	maxRemoveErrors = 10
	maxRemovePasses = 1 << 20 // over one directory; each but the last removes an entry
	removeBatch     = 1024    // names of one directory in memory
)

// path returns the path of an entry of the current directory for errors.
func (r *remover) path(name string) string {
	parts := []string{r.top}
	for _, l := range r.way {
		parts = append(parts, l.name)
	}
	return filepath.Join(append(parts, name)...)
}

// fail records that an entry and thus all its parents stay.
func (r *remover) fail(name string, err error) {
	if len(r.way) > 0 {
		r.way[len(r.way)-1].failed = true
	}
	switch {
	case errors.Is(err, r.ctx.Err()):
		if !slices.ContainsFunc(r.errs, func(e error) bool { return errors.Is(e, err) }) {
			r.errs = append(r.errs, err)
		}
	case len(r.errs) < maxRemoveErrors:
		r.errs = append(r.errs, fmt.Errorf("remove %s: %w", r.path(name), err))
	}
}

// remove deletes an entry of parent, the current directory.
func (r *remover) remove(parent int, name string) {
	if err := r.ctx.Err(); err != nil {
		r.fail(name, err)
		return
	}
	err := r.unlink(parent, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return
	case errors.Is(err, unix.EBUSY): // a file with a mount
		r.fail(name, fmt.Errorf("%w: %w", ErrMounted, err))
		return
	case errors.Is(err, unix.EROFS) && missing(parent, name): // which it does not say there
		return
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		r.fail(name, r.explain(parent, name, err))
		return
	}
	if len(r.way) >= maxRemoveDepth {
		if err := r.moveUp(parent, name); err != nil && !errors.Is(err, unix.ENOENT) {
			r.fail(name, err)
		}
		return
	}
	if !r.empty(parent, name, err) {
		if len(r.way) > 0 {
			r.way[len(r.way)-1].failed = true
		}
		return
	}
	if err := r.unlink(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		r.fail(name, r.explain(parent, name, err))
	}
}

func missing(parent int, name string) bool {
	var st unix.Stat_t
	return errors.Is(unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT)
}

// explain adds to the error of an entry what can be done about it.
func (r *remover) explain(parent int, name string, err error) error {
	var path string
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: find out why in the log of the kernel, and mount it read-write", err)
	case !errors.Is(err, unix.EPERM):
		return err
	case isFixed(parent, name):
		path = r.path(name)
	case isFixed(parent, ""):
		path = r.path("")
	default:
		return err
	}
	return fmt.Errorf("%w: immutable or append-only: run chattr -ia %q", err, path)
}

// unlink removes an entry, and makes the directory writable if necessary.
func (r *remover) unlink(parent int, name string, flags int) error {
	err := unix.Unlinkat(parent, name, flags)
	if !errors.Is(err, unix.EACCES) || len(r.way) == 0 {
		return err
	}
	l := r.way[len(r.way)-1]
	if l.opened {
		return err
	}
	l.opened = true
	if chmodErr := unix.Fchmod(parent, 0o700); chmodErr != nil {
		return err
	}
	return unix.Unlinkat(parent, name, flags)
}

// empty deletes the entries of a directory and reports whether it is empty. unlinked is the
// error of an attempt to remove it as a file, which it may be.
func (r *remover) empty(parent int, name string, unlinked error) bool {
	if is, _, _ := r.isRoot(parent, name); is { // of what is not known, what follows reports errors
		r.fail(name, ErrMounted) // not opened: its server may not answer
		return false
	}
	fd, err := openDir(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return true
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		err = r.explain(parent, name, unlinked)
	}
	if err != nil {
		r.fail(name, err)
		return false
	}
	l := &level{name: name, dir: os.NewFile(uintptr(fd), name)}
	defer func() { _ = l.dir.Close() }() // only read
	if is, err := r.mounted(parent, l); is || err != nil {
		r.fail(name, cmp.Or(err, ErrMounted))
		return false
	}
	r.way = append(r.way, l)
	defer func() { r.way = r.way[:len(r.way)-1] }()
	// A pass may miss entries while others are removed, and moveUp adds entries.
	for range maxRemovePasses {
		found, err := r.pass(l)
		if err != nil {
			r.fail("", err)
		}
		if l.failed || found == 0 {
			return !l.failed
		}
	}
	r.fail("", unix.ENOTEMPTY)
	return false
}

// pass removes the entries of a directory once and returns their number.
func (r *remover) pass(l *level) (found int, err error) {
	if _, err := l.dir.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	for {
		names, err := l.dir.Readdirnames(removeBatch)
		for _, child := range names {
			r.remove(l.fd(), child)
		}
		found += len(names)
		switch {
		case errors.Is(err, io.EOF):
			return found, nil
		case err == nil:
			err = r.ctx.Err()
		}
		if err != nil {
			return found, err
		}
	}
}

// moveUp moves a directory to the outermost directory possible, under a random name. A
// later pass over that directory removes it.
func (r *remover) moveUp(parent int, name string) error {
	newName := ".remove-" + rand.Text()
	var err error
	for _, l := range r.way[:len(r.way)-1] {
		err = unix.Renameat(parent, name, l.fd(), newName)
		if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EACCES) { // other project quota, or not writable
			break
		}
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w", ErrMounted, err)
	}
	return err
}

// openDir opens a directory, and makes it readable if necessary.
func openDir(parent int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(parent, name, flags, 0)
	if !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	if err := allowAccess(parent, name); err != nil {
		return -1, err
	}
	return unix.Openat(parent, name, flags, 0)
}

// mounted reports whether an open directory is a mount point.
func (r *remover) mounted(parent int, l *level) (bool, error) {
	is, known, err := r.isRoot(l.fd(), "")
	if known || err != nil {
		return is, err
	}
	if l.mountID, err = mountID(l.fd()); err != nil {
		return false, err
	}
	var parentID []byte
	if len(r.way) > 0 {
		parentID = r.way[len(r.way)-1].mountID
	} else if parentID, err = mountID(parent); err != nil {
		return false, err
	}
	return !bytes.Equal(parentID, l.mountID), nil
}

// mountID returns the mount id of an open directory.
func mountID(fd int) ([]byte, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("get mount id: %w", err)
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return []byte(id), nil
		}
	}
	return nil, errors.New("get mount id: not in fdinfo")
}
