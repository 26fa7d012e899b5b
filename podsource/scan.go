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

	"github.com/sublet-dev/agent/podspec"
)

// maxRereads is how many times a file that changes while it is being read is read
// again before it is taken as it is.
const maxRereads = 3

// mtimeGranularity is how fresh a file's times may be for a later change to go unnoticed in
// them: some file systems count in steps of two seconds.
const mtimeGranularity = 2 * time.Second

// scan is what one Watch of a file source knows. One goroutine owns it.
type scan struct {
	file       *file
	files      map[string]*manifest // by name in the folder
	fault      *SourceError         // of the folder itself
	single     bool                 // the path was a file when it was last seen
	complete   bool                 // everything there could be read at one time
	received   bool
	changed    bool
	rescanSoon bool // something is still being written
	owner      map[podspec.Ref]string
	duplicates []SourceError
}

// manifest is what is known of one file.
type manifest struct {
	content
	info     fs.FileInfo // when it was read, nil before
	readAt   time.Time
	sum      [sha256.Size]byte // of what was read; zero after an error
	tries    int               // it changed under the reader so often in a row
	complete bool              // it could be read as a whole once
	fault    *SourceError      // nil: it is well
}

func newScan(f *file) *scan {
	return &scan{file: f, files: map[string]*manifest{}, owner: map[podspec.Ref]string{}}
}

// run looks at the path, and at everything or only at what seems changed. It
// returns whether there is something new to hand over, and whether it should be
// run again soon.
func (s *scan) run(everything bool, now time.Time) (changed, again bool) {
	s.changed, s.rescanSoon = false, false
	names, single, err := s.list()
	switch {
	case err == nil:
		s.clear(&s.fault)
		s.single = single
		s.scanEntry(names, everything, now)
	case s.single && errors.Is(err, fs.ErrNotExist) && s.parentExists():
		// One file was asked for and is gone from its folder.
		s.note(&s.fault, s.file.path, err, now)
		s.scanEntry(nil, everything, now)
	default:
		s.note(&s.fault, s.file.path, err, now)
	}
	s.changed = s.changed || !s.received
	s.received = true
	if s.fault == nil && !slices.ContainsFunc(slices.Collect(maps.Values(s.files)), func(m *manifest) bool { return !m.complete }) {
		s.complete = true
	}
	return s.changed, s.rescanSoon
}

// list returns the names of the manifests in the folder, or the path's own
// where it is a file.
func (s *scan) list() (names []string, single bool, err error) {
	f := s.file
	info, err := fs.Stat(f.fsys, f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, fmt.Errorf("no such manifest folder or file; make it, or name another; pods known from it run on: %w", fs.ErrNotExist)
	case err != nil:
		return nil, false, fmt.Errorf("look at the manifest folder: %w; let this user read it; pods known from it run on", bare(err))
	case info.Mode().IsRegular():
		return []string{path.Base(f.path)}, true, nil
	case !info.IsDir():
		return nil, false, fmt.Errorf("is a %s, neither a folder of manifests nor a file; name one", kind(info.Mode()))
	}
	entries, err := fs.ReadDir(f.fsys, f.path)
	if err != nil {
		return nil, false, fmt.Errorf("list the manifest folder: %w; let this user read it; pods known from it run on", bare(err))
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

// where returns the path of the file of that name.
func (s *scan) where(name string) string {
	if s.single {
		return s.file.path
	}
	return path.Join(s.file.path, name)
}

// scanEntry looks at the files of these names, which are all there are.
func (s *scan) scanEntry(names []string, everything bool, now time.Time) {
	there := make(map[string]bool, len(names))
	for _, name := range names {
		if s.readFile(name, everything, now) {
			there[name] = true
		}
	}
	for name := range s.files {
		if !there[name] {
			delete(s.files, name)
			s.changed = true
		}
	}
	if s.changed {
		s.shareObjects(now)
	}
}

// readFile brings what is known of one file up to date. It returns false if there is
// no such file.
func (s *scan) readFile(name string, everything bool, now time.Time) bool {
	where := s.where(name)
	info, err := fs.Stat(s.file.fsys, where)
	if err == nil && info.IsDir() {
		return false // a link to a folder
	}
	m := s.files[name]
	if err == nil && m != nil && !everything && m.info != nil && same(m.info, info) &&
		m.readAt.Sub(info.ModTime()) > mtimeGranularity {
		return true
	}
	var data []byte
	var after fs.FileInfo
	if err == nil {
		data, after, err = read(s.file.fsys, where, info, s.file.limit)
	}
	if errors.Is(err, fs.ErrNotExist) && !s.dangles(name) {
		return false
	}
	if m == nil {
		m = &manifest{}
		s.files[name] = m
		s.changed = true
	}
	m.info, m.readAt = nil, now
	if err != nil {
		m.content, m.sum = m.all(), [sha256.Size]byte{}
		s.note(&m.fault, where, bare(err), now)
		return true
	}
	if m.tries < maxRereads && (after.Size() != int64(len(data)) || !after.ModTime().Equal(info.ModTime())) {
		m.tries++
		s.rescanSoon = true
		return true
	}
	m.tries, m.info = 0, after
	s.accept(m, where, data, now)
	return true
}

// accept gives a file its new content.
func (s *scan) accept(m *manifest, where string, data []byte, now time.Time) {
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
		s.note(&m.fault, where, err, now)
		return
	}
	m.complete = true
	s.clear(&m.fault)
}

// dangles reports whether the folder still has that name, so that the file is
// not gone but cannot be reached: a link to nowhere.
func (s *scan) dangles(name string) bool {
	entries, err := fs.ReadDir(s.file.fsys, path.Dir(s.where(name)))
	if err != nil {
		return true
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.Name() == name && e.Type()&fs.ModeSymlink != 0
	})
}

// note notes a fault, or that it still stands.
func (s *scan) note(at **SourceError, where string, err error, now time.Time) {
	if *at != nil && (*at).Err.Error() == err.Error() {
		return
	}
	*at = &SourceError{Location: where, Err: err, Since: now}
	s.changed = true
}

func (s *scan) clear(at **SourceError) {
	if *at != nil {
		*at = nil
		s.changed = true
	}
}
