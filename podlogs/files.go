package podlogs

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/logpath"
)

// ErrNotRegular is wrapped by the error for a log that is a link, a FIFO or the like.
var ErrNotRegular = logpath.ErrNotRegular

// maxRotated is the number of rotated files of a log that are read at most: the newest.
const maxRotated = 1000

// rotation identifies a rotated file by its name without .gz. The zero value is before all
// others.
type rotation struct {
	at   time.Time
	name string
}

func (r rotation) compare(other rotation) int {
	return cmp.Or(r.at.Compare(other.at), strings.Compare(r.name, other.name))
}

// file is an open file of a log.
type file struct {
	*os.File
	text io.Reader // its content, decompressed
	info fs.FileInfo
	// is is the rotated file that this is, or if it is the current one, the last before it.
	is        rotation
	isCurrent bool
}

// same reports whether both are the same file, whatever its name.
func (f *file) same(info fs.FileInfo) bool { return os.SameFile(f.info, info) }

// rewind begins to read a compressed file from its beginning.
func (f *file) rewind() error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	text, err := gzip.NewReader(f.File)
	if err != nil {
		return err
	}
	f.text = text
	return nil
}

func (f *file) isCompressed() bool { return f.text != io.Reader(f.File) }

// logDir is the directory of a container's log, which is the only one that is read.
type logDir struct {
	*os.Root
	base string // name of the current file
}

// openLogDir opens the directory of a log without following a link in its path.
func openLogDir(logsDir, log string) (*logDir, error) {
	root, err := os.OpenRoot(logsDir)
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(path.Dir(log), "/") {
		dir, err := openSubdir(root, name)
		_ = root.Close()
		if err != nil {
			return nil, err
		}
		root = dir
	}
	return &logDir{root, path.Base(log)}, nil
}

func openSubdir(root *os.Root, name string) (*os.Root, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: unix.ENOTDIR}
	}
	dir, err := root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if after, err := dir.Stat("."); err != nil || !os.SameFile(before, after) {
		_ = dir.Close()
		return nil, errors.Join(err, &fs.PathError{Op: "open", Path: name, Err: unix.ENOTDIR})
	}
	return dir, nil
}

// open opens a regular file. It does not block and follows no link.
func (d *logDir) open(name string) (*file, error) {
	f, info, err := logpath.OpenRegular(d.Root, name)
	if errors.Is(err, logpath.ErrReplaced) {
		err = fs.ErrNotExist // it was renamed in between
	}
	if err != nil {
		return nil, err
	}
	return &file{File: f, text: f, info: info}, nil
}

// openRotated opens a rotated file, compressed or not.
func (d *logDir) openRotated(r rotation) (*file, error) {
	// Its compressed form takes its place between the two calls, so that both are tried again.
	var err error
	for range 2 {
		var f *file
		if f, err = d.open(r.name); err == nil {
			f.is = r
			return f, nil
		}
		if f, err = d.open(r.name + logpath.Compressed); err == nil {
			f.is = r
			if f.text, err = gzip.NewReader(f.File); err == nil {
				return f, nil
			}
			_ = f.Close()
		}
	}
	return nil, err
}

// rotated lists the rotated files after one, oldest first.
func (d *logDir) rotated(after rotation) ([]rotation, error) {
	dir, err := d.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	var found []rotation
	for {
		names, err := dir.Readdirnames(maxRotated)
		for _, name := range names {
			at, ok := logpath.RotatedAt(d.base, name)
			if r := (rotation{at, strings.TrimSuffix(name, logpath.Compressed)}); ok && r.compare(after) > 0 {
				found = append(found, r)
			}
		}
		slices.SortFunc(found, rotation.compare)
		found = slices.Compact(found) // those with and without .gz
		found = slices.Delete(found, 0, max(len(found)-maxRotated, 0))
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) { // the latter for a removed directory
			return found, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// maxRaces is how often a directory is read again that changed meanwhile.
const maxRaces = 10

// snapshot returns the rotated files after one and opens the newest file, from which the
// log goes on: the current one, or while there is none, the newest rotated one. Without
// any file it returns nil.
func (d *logDir) snapshot(after rotation) (older []rotation, newest *file, err error) {
	for range maxRaces {
		newest, err = d.open(d.base)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		if older, err = d.rotated(after); err != nil {
			closeFile(newest)
			return nil, nil, err
		}
		if newest == nil {
			for i, r := range slices.Backward(older) {
				if newest, err = d.openRotated(r); err == nil {
					return older[:i], newest, nil
				}
			}
			return nil, nil, nil
		}
		// What was listed is older if the file was not renamed meanwhile.
		if info, err := d.Lstat(d.base); err == nil && newest.same(info) {
			older = slices.DeleteFunc(older, func(r rotation) bool { return d.isFile(r, newest) })
			newest.isCurrent, newest.is = true, after
			if len(older) > 0 {
				newest.is = older[len(older)-1]
			}
			return older, newest, nil
		}
		closeFile(newest)
	}
	return nil, nil, fmt.Errorf("read logs directory %s: it changes all the time", d.Name())
}

// isFile reports whether the rotated file, not compressed, is f.
func (d *logDir) isFile(r rotation, f *file) bool {
	info, err := d.Lstat(r.name)
	return err == nil && f.same(info)
}

// isNewest reports whether f still has the name of the current file.
func (d *logDir) isNewest(f *file) bool {
	info, err := d.Lstat(d.base)
	return err == nil && f.same(info)
}

// next opens the file after f, or returns nil if the log does not go on in another one yet.
// isComplete tells that the runtime has stopped to write to f for certain.
func (d *logDir) next(f *file) (next *file, isComplete bool, err error) {
	if d.isNewest(f) {
		return nil, false, nil
	}
	at, err := d.position(f)
	if err != nil {
		return nil, false, err
	}
	newer, newest, err := d.snapshot(at)
	if err != nil || newest == nil {
		return nil, false, err
	}
	for _, r := range newer {
		if next, err := d.openRotated(r); err == nil {
			closeFile(newest)
			return next, true, nil
		}
	}
	if newest.same(f.info) { // it got its name back
		closeFile(newest)
		return nil, false, nil
	}
	return newest, !newest.isCurrent, nil
}

// position returns the rotated file that f is by now.
func (d *logDir) position(f *file) (rotation, error) {
	newer, err := d.rotated(f.is)
	if err != nil {
		return rotation{}, err
	}
	for _, r := range newer {
		if d.isFile(r, f) {
			return r, nil
		}
	}
	for _, r := range newer {
		if f.isCurrent && d.isCompressed(r, f) {
			return r, nil
		}
	}
	return f.is, nil // also if it was removed
}

// isCompressed reports whether the rotated file is the compressed form of f. Entries have
// times, so their beginnings tell.
func (d *logDir) isCompressed(r rotation, f *file) bool {
	g, err := d.open(r.name + logpath.Compressed)
	if err != nil {
		return false
	}
	defer closeFile(g)
	text, err := gzip.NewReader(g.File)
	if err != nil {
		return false
	}
	const size = 4 << 10
	return slices.Equal(head(text, size), head(io.NewSectionReader(f, 0, size), size))
}

func head(r io.Reader, size int64) []byte {
	b, _ := io.ReadAll(io.LimitReader(r, size)) // what can be read
	return b
}

func closeFile(f *file) {
	if f != nil {
		_ = f.Close()
	}
}
