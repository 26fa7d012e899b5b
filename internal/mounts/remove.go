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

// ErrMounted is wrapped by the error of Remove about what stays because something
// is mounted there.
var ErrMounted = errors.New("has a mount of someone else's in it")

// Remove deletes names in the folder dir, whatever they are, and leaves what is
// mounted in them, with the way to it. What is not there is no error, be it dir
// itself. No link below dir is followed. It goes on where something fails and
// tells of the first few things that did.
//
// A container may have made what is removed: there is no limit to how deep it is,
// how long its paths are or how much is in one folder, and what Remove holds in
// memory and in descriptors does not grow with them. What lies deeper than it
// goes is moved up within the same tree first; so a mount that deep stays, too,
// but on a shorter way.
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

// remover deletes a tree by descriptors, so that no link that is put in its way
// leads it elsewhere, and looks at each folder for a mount before it goes in.
type remover struct {
	ctx    context.Context // lives for one call of Remove
	top    string
	way    []*level // the folders that it is in, the outermost first
	isRoot func(fd int, path string) (is, known bool, err error)
	errs   []error
}

// level is a folder that is being emptied.
type level struct {
	name    string
	dir     *os.File
	mountID []byte // where the kernel does not tell mounts folder by folder
	failed  bool   // something in it has to stay
	opened  bool   // it was made writable
}

func (l *level) fd() int { return int(l.dir.Fd()) }

const (
	maxRemoveDepth  = 64 // descriptors are held open on the way down
	maxRemoveErrors = 10
	maxRemovePasses = 1 << 20 // over one folder; each but the last takes something out of it
	removeBatch     = 1024    // names of one folder in memory
)

// path is what errors call name, a child of where the remover is.
func (r *remover) path(name string) string {
	parts := []string{r.top}
	for _, l := range r.way {
		parts = append(parts, l.name)
	}
	return filepath.Join(append(parts, name)...)
}

// fail notes that name stays, and so all that it is in.
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

// remove deletes a child of the folder parent, where the remover is.
func (r *remover) remove(parent int, name string) {
	if err := r.ctx.Err(); err != nil {
		r.fail(name, err)
		return
	}
	err := r.unlink(parent, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return
	case errors.Is(err, unix.EBUSY): // a file that something is mounted on
		r.fail(name, fmt.Errorf("%w: %w", ErrMounted, err))
		return
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		r.fail(name, err)
		return
	}
	if len(r.way) >= maxRemoveDepth {
		if err := r.moveUp(parent, name); err != nil && !errors.Is(err, unix.ENOENT) {
			r.fail(name, err)
		}
		return
	}
	if !r.empty(parent, name) {
		if len(r.way) > 0 {
			r.way[len(r.way)-1].failed = true
		}
		return
	}
	if err := r.unlink(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		r.fail(name, err)
	}
}

// unlink removes a name. A folder that its owner has closed is opened for that.
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

// empty deletes what is in a folder and reports whether all of it went.
func (r *remover) empty(parent int, name string) bool {
	fd, err := openDir(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return true
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
	// Names may be left out while others go, and come in from further down.
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

// pass goes through a folder once and returns how many names there were.
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

// moveUp takes a folder to the outermost one that it can be moved to, under a
// name that nobody can have guessed. Passes over that one come upon it again.
func (r *remover) moveUp(parent int, name string) error {
	fresh := ".remove-" + rand.Text()
	var err error
	for _, l := range r.way[:len(r.way)-1] {
		err = unix.Renameat(parent, name, l.fd(), fresh)
		if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EACCES) { // another quota, or closed
			break
		}
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w", ErrMounted, err)
	}
	return err
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
// in it is not what is in its parent on the disk.
func (r *remover) mounted(parent int, l *level) (bool, error) {
	is, known, err := r.isRoot(l.fd(), "")
	if known || err != nil {
		return is, err
	}
	if l.mountID, err = mountID(l.fd()); err != nil {
		return false, err
	}
	var above []byte
	if len(r.way) > 0 {
		above = r.way[len(r.way)-1].mountID
	} else if above, err = mountID(parent); err != nil {
		return false, err
	}
	return !bytes.Equal(above, l.mountID), nil
}

// mountID is the kernel's name for the mount that an open folder is in.
func mountID(fd int) ([]byte, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("look for a mount: %w", err)
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return []byte(id), nil
		}
	}
	return nil, errors.New("look for a mount: the kernel does not tell")
}
