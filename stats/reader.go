package stats

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
)

// maxFile is the maximum size of a kernel file. The largest one, memory.stat, has about
// 2 KiB.
const maxFile = 64 << 10

// reader reads kernel files, which are small and contain one number or a table. It is safe
// for concurrent use.
type reader struct {
	fsys fs.FS
	bufs sync.Pool // of *[]byte
	kept *fdCache
}

func newReader(fsys fs.FS) *reader { return newReaderWith(fsys, newFDCache()) }

// newUncachedReader returns a reader that keeps no file open: for files that are read too
// seldom to be worth the memory, and for those that must not be kept.
func newUncachedReader(fsys fs.FS) *reader { return newReaderWith(fsys, &fdCache{}) }

func newReaderWith(fsys fs.FS, kept *fdCache) *reader {
	return &reader{
		fsys: fsys, kept: kept,
		bufs: sync.Pool{New: func() any { b := make([]byte, 8<<10); return &b }},
	}
}

// read calls use with the content of a file. use must not retain it.
func (r *reader) read(name string, use func([]byte) error) error {
	buf, ok := r.bufs.Get().(*[]byte)
	if !ok {
		return errors.New("no buffer")
	}
	defer r.bufs.Put(buf)
	n, ok := r.kept.read(name, *buf)
	if !ok {
		var err error
		if n, err = r.readUncached(name, buf); err != nil {
			return err
		}
	}
	if err := use((*buf)[:n]); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readUncached opens and reads a file, and keeps it open if the cache has space.
func (r *reader) readUncached(name string, buf *[]byte) (n int, err error) {
	f, err := r.fsys.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil || !r.kept.keep(name, f) {
			f.Close() //nolint:errcheck,gosec // it was only read
		}
	}()
	n, err = fill(f, buf, maxFile)
	if err == nil && n >= maxFile {
		return 0, fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return n, err
}

// head calls use with the beginning of a file, up to limit bytes, and does not keep the file
// open. use must not retain it.
func (r *reader) head(name string, limit int, use func([]byte) error) error {
	buf, ok := r.bufs.Get().(*[]byte)
	if !ok {
		return errors.New("no buffer")
	}
	defer r.bufs.Put(buf)
	f, err := r.fsys.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	n, err := fill(f, buf, limit)
	if err != nil {
		return err
	}
	if err := use((*buf)[:n]); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// fill reads up to limit bytes of a file into buf, which grows as needed.
func fill(f fs.File, buf *[]byte, limit int) (n int, err error) {
	for n < limit {
		if n == len(*buf) {
			*buf = append(*buf, make([]byte, n)...)
		}
		m, err := f.Read((*buf)[n:min(len(*buf), limit)])
		n += m
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return n, nil
}

// number reads a file that contains one number. It returns the maximum for "max".
func (r *reader) number(name string) (n uint64, err error) {
	err = r.read(name, func(data []byte) error {
		n, err = parseNumber(strings.TrimSpace(string(data)))
		return err
	})
	return n, err
}

func parseNumber(s string) (uint64, error) {
	if s == "max" {
		return 1<<64 - 1, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

// table reads a file with lines "name value" and calls use for each. Lines whose value is
// not a number are ignored.
func (r *reader) table(name string, use func(key []byte, n uint64)) error {
	return r.read(name, func(data []byte) error {
		parseTable(data, use)
		return nil
	})
}

func parseTable(data []byte, use func(key []byte, n uint64)) {
	for len(data) > 0 {
		var line []byte
		line, data = cutLine(data)
		key, rest := cutSpace(line)
		value, _ := cutSpace(rest)
		if n, ok := digits(value); ok {
			use(key, n)
		}
	}
}

func cutLine(data []byte) (line, rest []byte) {
	for i, b := range data {
		if b == '\n' {
			return data[:i], data[i+1:]
		}
	}
	return data, nil
}

// cutSpace cuts at the first run of spaces, and removes a colon from the end of the word.
func cutSpace(data []byte) (word, rest []byte) {
	i := 0
	for i < len(data) && data[i] != ' ' && data[i] != '\t' {
		i++
	}
	word = data[:i]
	if i > 0 && data[i-1] == ':' {
		word = data[:i-1]
	}
	for i < len(data) && (data[i] == ' ' || data[i] == '\t') {
		i++
	}
	return word, data[i:]
}

func digits(data []byte) (n uint64, ok bool) {
	if len(data) == 0 {
		return 0, false
	}
	for _, b := range data {
		if b < '0' || b > '9' || n > (1<<64-10)/10 {
			return 0, false
		}
		n = n*10 + uint64(b-'0')
	}
	return n, true
}

// join returns the name in an fs.FS of a file in a cgroup, which has a leading slash.
func join(elements ...string) string {
	return strings.TrimPrefix(path.Join(elements...), "/")
}
