//go:build unix

package diskusage

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// Walk adds up the disk usage below a directory, on its own file system, each file once.
// Files that are removed meanwhile do not count. It can be suspended and continued,
// because a container can create more files than can be counted at once. Its result so
// far is never too high.
//
// Containers control the files. Therefore it uses open directories instead of paths, so
// that neither links nor depth can mislead it, reads directories in pieces, and keeps
// only a few of them open.
type Walk struct {
	path    string // for errors only
	root    fileID
	dirs    []walkDir // from the root to the current directory; empty: done
	names   int       // bytes of all walkDir.rest
	levels  int       // maximum number of dirs; 0: walkLevels
	used    runtime.DiskUsage
	parts   float64 // sum of the inodes of which each name counts for a part
	counted map[fileID]struct{}
	err     error // the first error; the files concerned are not counted
}

// errTooMany means that files of subdirectories are not counted.
var errTooMany = errors.New("too many nested directories, or too many subdirectories in each of many of them")

// fileID identifies a file that has several names.
type fileID struct{ dev, ino uint64 }

// walkDir is a directory of the walk.
type walkDir struct {
	id   fileID
	file *os.File // nil: closed, to be opened again on the way back
	read bool     // all entries were read
	rest []byte   // names of its subdirectories that are left, each ended by a NUL
	used int      // bytes of names before rest in its array
}

// take takes the first of the names that are left. The array with them shrinks with them.
func (d *walkDir) take() (name string, ok bool) {
	first, rest, ok := bytes.Cut(d.rest, []byte{0})
	if !ok {
		return "", false
	}
	name, d.rest, d.used = string(first), rest, d.used+len(first)+1
	if d.used > len(rest) {
		d.rest, d.used = append([]byte(nil), rest...), 0
	}
	return name, true
}

const (
	// walkBatch is the number of entries read at a time.
	walkBatch = 256
	// walkOpen is the number of directories that stay open, from the root down, besides the
	// current one.
	walkOpen = 8
	// walkNames is the number of bytes of names above which subdirectories are counted
	// before the rest of their directory is read, which stays open meanwhile.
	walkNames = 1 << 20
	// walkPartial is the maximum number of further directories that stay open for that.
	walkPartial = 32
	// walkLevels is the maximum number of nested directories whose entries are counted. Each
	// takes some 70 bytes besides names, which are 4.5 MiB for all.
	walkLevels = 1 << 16
	// walkLinked is the maximum number of files with several names that are recorded as
	// counted. Of further ones, each name counts for its part.
	walkLinked = 1 << 16
)

const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// New begins a walk at path, a directory or a single file. A missing path is empty.
func New(path string) *Walk {
	w := &Walk{path: path, counted: make(map[fileID]struct{})}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		w.fail("stat", err)
		return w
	}
	w.root = idOf(&st)
	w.add(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return w
	}
	fd, err := unix.Open(path, openDir, 0)
	if err != nil {
		w.fail("open", err)
		return w
	}
	w.enter(fd)
	return w
}

// Run continues the walk until all files are counted or ctx is done.
func (w *Walk) Run(ctx context.Context) (done bool) {
	for !w.Done() {
		if ctx.Err() != nil {
			return false
		}
		w.Step()
	}
	return true
}

// Done reports whether all files are counted.
func (w *Walk) Done() bool { return len(w.dirs) == 0 }

// Step reads some entries of the current directory, enters a subdirectory, or leaves the
// directory. It does nothing when all files are counted.
func (w *Walk) Step() {
	if w.Done() {
		return
	}
	d := &w.dirs[len(w.dirs)-1]
	if !d.read && (len(d.rest) == 0 || w.names <= walkNames || !w.canStayOpen(len(w.dirs)-1)) {
		w.readSome(d)
		return
	}
	name, more := d.take()
	if !more {
		w.leave()
		return
	}
	w.names -= len(name) + 1
	fd, err := unix.Openat(int(d.file.Fd()), name, openDir, 0)
	if err != nil {
		w.fail("open", err)
		return
	}
	w.enter(fd)
}

// SoFar returns the disk usage counted so far.
func (w *Walk) SoFar() runtime.DiskUsage {
	u := w.used
	u.Inodes += uint64(w.parts)
	return u
}

// Close closes all directories. The walk cannot be continued.
func (w *Walk) Close() {
	for i := range w.dirs {
		if f := w.dirs[i].file; f != nil {
			f.Close() //nolint:errcheck,gosec // it was only read
		}
	}
	w.dirs = nil
}

// Err returns the first error. The files concerned are not counted.
func (w *Walk) Err() error { return w.err }

// enter makes an opened directory the current one. It closes a directory on another file
// system: a mount, or a directory that has replaced the one that was read.
func (w *Walk) enter(fd int) {
	f := os.NewFile(uintptr(fd), w.path)
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err != nil || uint64(st.Dev) != w.root.dev { //nolint:unconvert // its type differs by system
		w.fail("stat", err)
		f.Close() //nolint:errcheck,gosec // it was not read
		return
	}
	w.dirs = append(w.dirs, walkDir{id: idOf(&st), file: f})
	if i := len(w.dirs) - 2; i >= walkOpen && w.dirs[i].read {
		w.dirs[i].file.Close() //nolint:errcheck,gosec // it was only read
		w.dirs[i].file = nil
	}
}

// canStayOpen reports whether the directory i can stay open while its subdirectories are
// counted.
func (w *Walk) canStayOpen(i int) bool {
	if i < walkOpen {
		return true
	}
	open := 0
	for _, d := range w.dirs[walkOpen:i] {
		if d.file != nil {
			open++
		}
	}
	return open < walkPartial
}

// leave closes the current directory and returns to its parent.
func (w *Walk) leave() {
	last := len(w.dirs) - 1
	f := w.dirs[last].file
	w.cut(last)
	defer f.Close() //nolint:errcheck // it was only read
	if last == 0 || w.dirs[last-1].file != nil {
		return
	}
	up := &w.dirs[last-1]
	fd, err := unix.Openat(int(f.Fd()), "..", openDir, 0)
	if err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && idOf(&st) == up.id {
			up.file = os.NewFile(uintptr(fd), w.path)
			return
		}
		unix.Close(fd) //nolint:errcheck // it was not read
	}
	// The directory was moved. Continue with the nearest one that is open.
	for ; w.dirs[last-1].file == nil; last-- {
		w.names -= len(w.dirs[last-1].rest)
	}
	w.cut(last)
}

// cut keeps n directories, and nothing of the others.
func (w *Walk) cut(n int) {
	clear(w.dirs[n:])
	w.dirs = w.dirs[:n]
}

// readSome reads and counts some entries of a directory.
func (w *Walk) readSome(d *walkDir) {
	entries, err := d.file.ReadDir(walkBatch)
	for _, e := range entries {
		if e.IsDir() && isElsewhere(int(d.file.Fd()), e.Name(), w.root.dev) {
			continue // it is mounted, and may not answer
		}
		var st unix.Stat_t
		if err := unix.Fstatat(int(d.file.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			w.fail("stat", err)
			continue
		}
		if uint64(st.Dev) != w.root.dev { //nolint:unconvert // its type differs by system
			continue
		}
		w.add(&st)
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		case len(w.dirs) >= cmp.Or(w.levels, walkLevels) || w.names > walkNames && !w.canStayOpen(len(w.dirs)-1):
			w.fail("read", errTooMany)
		default:
			d.rest = append(append(d.rest, e.Name()...), 0)
			w.names += len(e.Name()) + 1
		}
	}
	if err != nil {
		d.read = true
		if !errors.Is(err, io.EOF) {
			w.fail("read", err)
		}
	}
}

// add counts one entry.
func (w *Walk) add(st *unix.Stat_t) {
	n := uint64(max(st.Blocks, 0)) * 512
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		id := idOf(st)
		if _, twice := w.counted[id]; twice {
			return
		}
		if len(w.counted) >= walkLinked {
			w.used.Bytes += n / uint64(st.Nlink) //nolint:unconvert // its type differs by system
			w.parts += 1 / float64(st.Nlink)
			return
		}
		w.counted[id] = struct{}{}
	}
	w.used.Bytes += n
	w.used.Inodes++
}

// fail records the first error, except for files that were removed or are not readable.
func (w *Walk) fail(operation string, err error) {
	harmless := err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) // another file took its place
	if w.err == nil && !harmless {
		w.err = fmt.Errorf("count %s: %s: %w", w.path, operation, err)
	}
}

func idOf(st *unix.Stat_t) fileID {
	return fileID{uint64(st.Dev), st.Ino} //nolint:unconvert // its type differs by system
}
