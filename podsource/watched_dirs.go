package podsource

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of following links.
const (
	maxHops  = 40   // as the kernel
	maxLinks = 1000 // files in the folder that are links
)

// watchedDirs are folders in which a change may matter.
type watchedDirs map[string]*watchedDir

// watchedDir tells which names in a folder matter.
type watchedDir struct {
	names     map[string]bool
	manifests bool // those of manifests too
}

func (p watchedDirs) at(dir string) *watchedDir {
	if p[dir] == nil {
		p[dir] = &watchedDir{names: map[string]bool{}}
	}
	return p[dir]
}

func (p watchedDirs) note(dir, name string) { p.at(dir).names[name] = true }

// matter reports whether a change of what has that path may.
func (p watchedDirs) matter(path string) bool {
	if _, ok := p[path]; ok {
		return true
	}
	in, name := p[filepath.Dir(path)], filepath.Base(path)
	return in != nil && (in.names[name] || in.manifests && isManifest(name))
}

// find returns where a change may alter what is found at path or, where it is a
// folder, in the manifests there.
func find(path string) watchedDirs {
	p := watchedDirs{}
	dir, ok := p.walk(path)
	if !ok {
		return p
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() {
			p.at(dir).manifests = true
		}
		return p
	}
	p.at(dir).manifests = true
	links := 0
	for _, e := range entries {
		if e.Type()&os.ModeSymlink == 0 || !isManifest(e.Name()) {
			continue
		}
		if links++; links > maxLinks {
			break // the rescan finds the rest
		}
		p.walk(filepath.Join(dir, e.Name()))
	}
	return p
}

// walk goes to path as the kernel would and notes each link it meets, the end of
// the way, and the first name that is not there. It returns the place without
// links, and false if there is none.
func (p watchedDirs) walk(path string) (string, bool) {
	at, rest, hops := "/", split(path), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		target, err := os.Readlink(next)
		switch {
		case err == nil:
			p.note(at, name)
			if hops++; hops > maxHops {
				return "", false
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			rest = append(split(target), rest...)
		case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
			p.note(at, name)
			return "", false
		default: // no link
			if len(rest) == 0 {
				p.note(at, name)
			}
			at = next
		}
	}
	return at, true
}

func split(path string) []string { return strings.Split(path, "/") }
