package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sublet-dev/agent/internal/mounts"
)

const (
	dataLink    = "..data"     // symbolic link to the directory with the content
	dataLinkNew = "..data_tmp" // renamed over dataLink
)

// writer replaces the content of a directory atomically. A reader finds either all of
// the old or all of the new files:
//
//	key           -> ..data/key
//	..data        -> ..2026_01_02_15_04_05.123
//	..2026_01_02_15_04_05.123/key
type writer struct {
	ctx    context.Context // lives for one write
	root   *os.Root
	path   string // of root
	gid    *int64
	nested []nestedMount
}

// write makes files the content, and does nothing if they already are.
func (w *writer) write(files payload) error {
	old, err := w.root.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old == "" || !w.same(old, files) {
		// Content that a killed agent has left must not add up. An error comes back below.
		_ = w.clean(old, nil)
		if err := w.swap(files); err != nil {
			return err
		}
	}
	// Repeated in case the agent crashed before these steps.
	if err := w.links(files); err != nil {
		return err
	}
	current, err := w.root.Readlink(dataLink)
	if err != nil {
		return err
	}
	if err := w.clean(current, tops(files)); err != nil {
		return err
	}
	return w.makeNested() // last: a link to a file that is gone would be in the way
}

func (w *writer) swap(files payload) (err error) {
	dir, err := w.newDir()
	defer func() {
		if err != nil { // the next attempt makes a directory of its own
			err = errors.Join(err, mounts.Remove(context.WithoutCancel(w.ctx), w.path, dir))
		}
	}()
	if err != nil {
		return err
	}
	for at, f := range files {
		if err := w.file(dir, at, f); err != nil {
			return err
		}
	}
	if err := w.root.Remove(dataLinkNew); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := w.root.Symlink(dir, dataLinkNew); err != nil {
		return err
	}
	return w.root.Rename(dataLinkNew, dataLink)
}

// newDir creates a new directory with a timestamp as its name. A number is added if the
// name exists.
func (w *writer) newDir() (string, error) {
	stamp := ".." + time.Now().UTC().Format("2006_01_02_15_04_05.000000000")
	for i := 1; ; i++ {
		name := stamp
		if i > 1 {
			name += "_" + strconv.Itoa(i)
		}
		err := w.mkdir(name)
		if !errors.Is(err, fs.ErrExist) {
			return name, err
		}
	}
}

// mkdir creates a directory that the fsGroup of the pod may access.
func (w *writer) mkdir(at string) error {
	if err := w.root.Mkdir(at, 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o755)
	if w.gid != nil {
		if err := chgrp(w.root, at, *w.gid); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	return w.root.Chmod(at, mode)
}

// mkdirs creates the directories of a path below dir that do not exist: each that ends with a slash.
func (w *writer) mkdirs(dir, at string) error {
	for i, c := range at {
		if c == '/' {
			if err := w.mkdir(path.Join(dir, at[:i])); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return nil
}

func (w *writer) file(dir, at string, f file) error {
	if err := w.mkdirs(dir, at); err != nil {
		return err
	}
	name := path.Join(dir, at)
	if err := w.root.WriteFile(name, f.data, 0o600); err != nil {
		return err
	}
	if w.gid != nil {
		if err := chgrp(w.root, name, *w.gid); err != nil {
			return err
		}
	}
	if f.uid != nil {
		// The containers of an agent without privileges run as its own user.
		if err := w.root.Lchown(name, int(*f.uid), -1); err != nil && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("change owner to user %d: %w", *f.uid, err)
		}
	}
	return w.root.Chmod(name, w.mode(f))
}

// mode returns the mode of a file, which is readable for the fsGroup.
func (w *writer) mode(f file) fs.FileMode {
	if w.gid != nil {
		return f.mode | 0o440
	}
	return f.mode
}

// links creates the symbolic links that lead from the names in the volume to ..data.
func (w *writer) links(files payload) error {
	for top := range tops(files) {
		to := path.Join(dataLink, top)
		if have, err := w.root.Readlink(top); err == nil && have == to {
			continue
		}
		if w.isNested(top) {
			continue
		}
		if err := w.root.Remove(top); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if w.isHidden(top, files) {
			continue
		}
		if err := w.root.Symlink(to, top); err != nil {
			return err
		}
	}
	return nil
}

// clean removes content that is not current and, unless links is nil, links that are not in
// it. Other files are left alone.
func (w *writer) clean(current string, links map[string]bool) error {
	entries, err := fs.ReadDir(w.root.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		switch name := e.Name(); {
		case name == dataLink || name == current || links[name]:
		case e.Type() == fs.ModeSymlink && links != nil:
			errs = append(errs, w.root.Remove(name))
		case e.IsDir() && isReserved(name):
			errs = append(errs, mounts.Remove(w.ctx, w.path, name))
		}
	}
	return errors.Join(errs...)
}

// tops returns the first elements of the paths.
func tops(files payload) map[string]bool {
	out := make(map[string]bool, len(files))
	for at := range files {
		top, _, _ := strings.Cut(at, "/")
		out[top] = true
	}
	return out
}

// same reports whether the directory contains exactly these files, with their modes and
// group.
func (w *writer) same(dir string, files payload) bool {
	if !strings.HasPrefix(dir, "..") || strings.Contains(dir, "/") {
		return false // not created by this package
	}
	found := 0
	err := fs.WalkDir(w.root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, ok := files[strings.TrimPrefix(name, dir+"/")]
		if !ok || !w.isFile(name, e, f) {
			return fs.ErrInvalid // ends the walk: they differ
		}
		found++
		return nil
	})
	return err == nil && found == len(files)
}

func (w *writer) isFile(name string, e fs.DirEntry, f file) bool {
	info, err := e.Info()
	if err != nil || info.Mode() != w.mode(f) || info.Size() != int64(len(f.data)) {
		return false
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && (w.gid != nil && int64(st.Gid) != *w.gid || f.uid != nil && isRoot() && int64(st.Uid) != *f.uid) {
		return false
	}
	have, err := w.root.ReadFile(name)
	return err == nil && bytes.Equal(have, f.data)
}

func isRoot() bool { return os.Geteuid() == 0 }

// chgrp changes the group of a file.
func chgrp(root *os.Root, name string, gid int64) error {
	err := root.Lchown(name, -1, int(gid))
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("change owner to fsGroup %d: %w: %w", gid, ErrPrivilege, err)
	}
	return err
}
