package podsource

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Limits for following symbolic links.
const (
	maxHops  = 40   // like the kernel
	maxLinks = 1000 // manifests that are links
)

// watchedDirs are the directories in which a change may be relevant, by path.
type watchedDirs map[string]*watchedDir

// watchedDir contains the relevant names in a directory.
type watchedDir struct {
	names     map[string]bool
	manifests bool // names of manifests, too
}

func (p watchedDirs) at(dir string) *watchedDir {
	if p[dir] == nil {
		p[dir] = &watchedDir{names: map[string]bool{}}
	}
	return p[dir]
}

func (p watchedDirs) note(dir, name string) { p.at(dir).names[name] = true }

// isRelevant reports whether a change of that path may be relevant.
func (p watchedDirs) isRelevant(path string) bool {
	if _, ok := p[path]; ok {
		return true
	}
	in, name := p[filepath.Dir(path)], filepath.Base(path)
	return in != nil && (in.names[name] || in.manifests && isManifest(name))
}

// findDirs returns the directories in which a change may alter the file at path or, if
// it is a directory, the manifests in it.
func findDirs(path string) watchedDirs {
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

// walk resolves path like the kernel and notes each symbolic link, the last name, and
// the first name that does not exist. It returns the path without links, or false if it
// does not exist.
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
		default: // not a link
			if len(rest) == 0 {
				p.note(at, name)
			}
			at = next
		}
	}
	return at, true
}

func split(path string) []string { return strings.Split(path, "/") }
