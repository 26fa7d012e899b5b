package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/mounts"
)

const (
	dataLink    = "..data"     // leads to the folder with the content
	dataLinkNew = "..data_tmp" // renamed over dataLink
)

// writer changes the whole content of a folder at one stroke. Whoever looks in
// meanwhile sees all of the old or all of the new:
//
//	key           -> ..data/key
//	..data        -> ..2026_01_02_15_04_05.123
//	..2026_01_02_15_04_05.123/key
type writer struct {
	ctx  context.Context // lives for one write
	root *os.Root
	path string // of root
	gid  *int64
}

// write brings the content to files and does nothing if it is that already.
func (w *writer) write(files payload) error {
	old, err := w.root.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old != "" && !w.same(old, files) || old == "" {
		if err := w.swap(files); err != nil {
			return err
		}
	}
	// The rest is done again after a crash in between.
	if err := w.links(files); err != nil {
		return err
	}
	return w.clean(files)
}

func (w *writer) swap(files payload) error {
	fresh, err := w.fresh()
	if err != nil {
		return err
	}
	for at, f := range files {
		if err := w.file(fresh, at, f); err != nil {
			return err
		}
	}
	if err := w.root.Remove(dataLinkNew); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := w.root.Symlink(fresh, dataLinkNew); err != nil {
		return err
	}
	return w.root.Rename(dataLinkNew, dataLink)
}

// fresh makes a folder that was not there and is named by the time. Numbers
// tell folders of one instant apart.
func (w *writer) fresh() (string, error) {
	stamp := ".." + time.Now().UTC().Format("2006_01_02_15_04_05.000000000")
	for i := 1; ; i++ {
		name := stamp
		if i > 1 {
			name += "_" + strconv.Itoa(i)
		}
		err := w.folder(name)
		if !errors.Is(err, fs.ErrExist) {
			return name, err
		}
	}
}

// folder makes a folder that the pod's group may pass.
func (w *writer) folder(at string) error {
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

func (w *writer) file(fresh, at string, f file) error {
	for i, c := range at {
		if c == '/' {
			if err := w.folder(path.Join(fresh, at[:i])); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	name := path.Join(fresh, at)
	if err := w.root.WriteFile(name, f.data, 0o600); err != nil {
		return err
	}
	if w.gid != nil {
		if err := chgrp(w.root, name, *w.gid); err != nil {
			return err
		}
	}
	return w.root.Chmod(name, w.mode(f))
}

// mode lets the pod's group read what it is given.
func (w *writer) mode(f file) fs.FileMode {
	if w.gid != nil {
		return f.mode | 0o440
	}
	return f.mode
}

// links leads from the names that the container knows into the content.
func (w *writer) links(files payload) error {
	for top := range tops(files) {
		to := path.Join(dataLink, top)
		if have, err := w.root.Readlink(top); err == nil && have == to {
			continue
		}
		if err := w.root.Remove(top); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := w.root.Symlink(to, top); err != nil {
			return err
		}
	}
	return nil
}

// clean removes former content and the links into it. Nothing else is ours.
func (w *writer) clean(files payload) error {
	current, err := w.root.Readlink(dataLink)
	if err != nil {
		return err
	}
	wanted := tops(files)
	entries, err := fs.ReadDir(w.root.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		switch name := e.Name(); {
		case name == dataLink || name == current || wanted[name]:
		case e.Type() == fs.ModeSymlink:
			errs = append(errs, w.root.Remove(name))
		case e.IsDir() && strings.HasPrefix(name, ".."):
			errs = append(errs, mounts.Remove(w.ctx, w.path, name))
		}
	}
	return errors.Join(errs...)
}

// tops are the first parts of the paths.
func tops(files payload) map[string]bool {
	out := make(map[string]bool, len(files))
	for at := range files {
		top, _, _ := strings.Cut(at, "/")
		out[top] = true
	}
	return out
}

// same reports whether the folder holds files and nothing else, with their
// modes and group.
func (w *writer) same(dir string, files payload) bool {
	if !strings.HasPrefix(dir, "..") || strings.Contains(dir, "/") {
		return false // not one of ours
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
	if st, ok := info.Sys().(*syscall.Stat_t); ok && w.gid != nil && int64(st.Gid) != *w.gid {
		return false
	}
	have, err := w.root.ReadFile(name)
	return err == nil && bytes.Equal(have, f.data)
}

// chgrp gives a file to a group.
func chgrp(root *os.Root, name string, gid int64) error {
	err := root.Lchown(name, -1, int(gid))
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("give it to fsGroup %d: %w: %w", gid, ErrPrivilege, err)
	}
	return err
}

func podAttrs(pod *corev1.Pod) []any {
	return []any{slog.String("pod", pod.Name), slog.String("namespace", pod.Namespace), slog.String("uid", string(pod.UID))}
}
