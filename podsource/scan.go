package podsource

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/fileversion"
	"github.com/sublet-dev/agent/podspec"
)

// maxRereads is how often a file that changes while it is read is read again before
// its content is used anyway.
const maxRereads = 3

// scan is the state of one Watch of a file source. One goroutine owns it.
type scan struct {
	file       *file
	files      map[string]*manifest // by file name
	dirErr     *SourceError         // of the directory itself
	single     bool                 // the path was a file at the last scan
	complete   bool                 // all files could be read once
	received   bool
	changed    bool
	rescanSoon bool // a file is still being written
	owner      map[podspec.Ref]string
	duplicates []SourceError
}

// manifest is the state of one file.
type manifest struct {
	content
	version  fileversion.Version // zero: to be read
	sum      [sha256.Size]byte   // of the content; zero after an error
	tries    int                 // consecutive reads during which it changed
	complete bool                // was valid once
	err      *SourceError        // nil if valid
}

func newScan(f *file) *scan {
	return &scan{file: f, files: map[string]*manifest{}, owner: map[podspec.Ref]string{}}
}

// run reads changed files, or all of them. It reports whether the set has changed, and
// whether another scan should follow soon.
func (s *scan) run(all bool, now time.Time) (changed, rescanSoon bool) {
	s.changed, s.rescanSoon = false, false
	names, single, err := s.list()
	switch {
	case err == nil:
		s.clearError(&s.dirErr)
		s.single = single
		s.readFiles(names, all, now)
	case s.single && errors.Is(err, fs.ErrNotExist) && s.parentExists():
		// The path is a single file, which was removed from its directory.
		s.setError(&s.dirErr, s.file.path, err, now)
		s.readFiles(nil, all, now)
	default:
		s.setError(&s.dirErr, s.file.path, err, now)
	}
	s.changed = s.changed || !s.received
	s.received = true
	if s.dirErr == nil && !slices.ContainsFunc(slices.Collect(maps.Values(s.files)), func(m *manifest) bool { return !m.complete }) {
		s.complete = true
	}
	return s.changed, s.rescanSoon
}

// list returns the names of the manifests in the directory, or that of the path if it
// is a file.
func (s *scan) list() (names []string, single bool, err error) {
	f := s.file
	info, err := fs.Stat(f.fsys, f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, fmt.Errorf("manifest path not found; create it or change the path; known pods keep running: %w", fs.ErrNotExist)
	case err != nil:
		return nil, false, fmt.Errorf("read manifest directory: %w; check its permissions; known pods keep running", withoutPath(err))
	case info.Mode().IsRegular():
		return []string{path.Base(f.path)}, true, nil
	case !info.IsDir():
		return nil, false, fmt.Errorf("manifest path is a %s; it must be a directory or a file", kind(info.Mode()))
	}
	entries, err := fs.ReadDir(f.fsys, f.path)
	if err != nil {
		return nil, false, fmt.Errorf("read manifest directory: %w; check its permissions; known pods keep running", withoutPath(err))
	}
	for _, e := range entries {
		if isManifest(e.Name()) && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, false, nil
}

func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func (s *scan) parentExists() bool {
	info, err := fs.Stat(s.file.fsys, path.Dir(s.file.path))
	return err == nil && info.IsDir()
}

// pathOf returns the path of the file with that name.
func (s *scan) pathOf(name string) string {
	if s.single {
		return s.file.path
	}
	return path.Join(s.file.path, name)
}

// readFiles reads the files with these names and forgets those that do not exist any more. It looks for a file that the
// list of the directory lacks: a directory that is being removed, after a link has got another target, lacks some.
func (s *scan) readFiles(names []string, all bool, now time.Time) {
	exists := make(map[string]bool, len(names))
	for _, name := range names {
		exists[name] = s.readFile(name, all, now)
	}
	for name := range s.files {
		found, listed := exists[name]
		if !listed && !s.single {
			found = s.readFile(name, all, now)
		}
		if !found {
			delete(s.files, name)
			s.changed = true
		}
	}
	if s.changed {
		s.assignObjects(now)
	}
}

// readFile updates the state of one file. It returns false if the file does not exist.
func (s *scan) readFile(name string, all bool, now time.Time) bool {
	location := s.pathOf(name)
	info, err := fs.Stat(s.file.fsys, location)
	if err == nil && info.IsDir() {
		return false // a link to a directory
	}
	m := s.files[name]
	if err == nil && m != nil && !all && m.version.IsCurrent(info) {
		return true
	}
	var data []byte
	var after fs.FileInfo
	if err == nil {
		data, after, err = read(s.file.fsys, location, info, s.file.limit)
	}
	if errors.Is(err, fs.ErrNotExist) && !s.dangles(name) {
		return false
	}
	if m == nil {
		m = &manifest{}
		s.files[name] = m
		s.changed = true
	}
	m.version = fileversion.Version{}
	if err != nil {
		m.content, m.sum = m.allRetained(), [sha256.Size]byte{}
		s.setError(&m.err, location, withoutPath(err), now)
		return true
	}
	if m.tries < maxRereads && (after.Size() != int64(len(data)) || !after.ModTime().Equal(info.ModTime())) {
		m.tries++
		s.rescanSoon = true
		return true
	}
	m.tries, m.version = 0, fileversion.Of(after, now)
	s.accept(m, location, data, now)
	return true
}

// accept decodes the new content of a file.
func (s *scan) accept(m *manifest, location string, data []byte, now time.Time) {
	sum := sha256.Sum256(data)
	if sum == m.sum {
		return
	}
	m.sum = sum
	opt := podspec.DecodeOptions{Lenient: s.file.lenient, MaxBytes: s.file.limit}
	next, err := parse(bytes.Clone(data), opt, m.content)
	m.content = next
	s.changed = true
	if err != nil {
		s.setError(&m.err, location, err, now)
		return
	}
	m.complete = true
	s.clearError(&m.err)
}

// dangles reports whether the name is a symbolic link, so that the file was not removed
// but its target is missing.
func (s *scan) dangles(name string) bool {
	entries, err := fs.ReadDir(s.file.fsys, path.Dir(s.pathOf(name)))
	if err != nil {
		return true
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.Name() == name && e.Type()&fs.ModeSymlink != 0
	})
}

// setError sets an error unless it is the current one.
func (s *scan) setError(at **SourceError, location string, err error, now time.Time) {
	if *at != nil && (*at).Err.Error() == err.Error() {
		return
	}
	*at = &SourceError{Location: location, Err: err, Since: now}
	s.changed = true
}

func (s *scan) clearError(at **SourceError) {
	if *at != nil {
		*at = nil
		s.changed = true
	}
}
