package cri

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/sublet-dev/agent/runtime"
)

// imageRef is an image reference taken apart: registry/path:tag@digest.
type imageRef struct {
	registry, path, tag, digest string
}

const (
	dockerHub    = "docker.io"
	maxReference = 4096
)

// parseImage takes an image reference apart. A reference without a registry is
// Docker Hub's, one of a single word its library's.
func parseImage(name string) (imageRef, error) {
	bad := func(why string) error { return fmt.Errorf("image %q: %s: %w", name, why, runtime.ErrInvalid) }
	if name == "" || len(name) > maxReference {
		return imageRef{}, fmt.Errorf("image name of %d bytes: %w", len(name), runtime.ErrInvalid)
	}
	var r imageRef
	rest, digest, pinned := strings.Cut(name, "@")
	if pinned && !digestForm(digest) {
		return imageRef{}, bad("the digest is malformed")
	}
	r.digest = digest
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.Contains(rest[i:], "/") {
		rest, r.tag = rest[:i], rest[i+1:]
		if !tagForm(r.tag) {
			return imageRef{}, bad("the tag is malformed")
		}
	}
	first, more, split := strings.Cut(rest, "/")
	switch {
	case split && isRegistry(first):
		r.registry, r.path = first, more
		if !registryForm(first) {
			return imageRef{}, bad("the registry is malformed")
		}
	case split:
		r.registry, r.path = dockerHub, rest
	default:
		r.registry, r.path = dockerHub, "library/"+rest
	}
	if r.registry == "index.docker.io" {
		r.registry = dockerHub
	}
	for part := range strings.SplitSeq(r.path, "/") {
		if !pathForm(part) {
			return imageRef{}, bad("the repository is malformed; it must be in lower case")
		}
	}
	return r, nil
}

// withTag returns the reference as it is given to the runtime: as it was
// written, with the tag that is meant where there is none.
func withTag(name string, r imageRef) string {
	if r.tag == "" && r.digest == "" {
		return name + ":latest"
	}
	return name
}

// isRegistry tells a registry's name from the first part of a path.
func isRegistry(s string) bool {
	return s == "localhost" || strings.ContainsAny(s, ".:[") || strings.ToLower(s) != s
}

// The forms of the parts, as the distribution specification has them. The
// expressions are compiled for each use; a pull is rare and dear.
func matchesForm(expr, s string) bool {
	ok, err := regexp.MatchString(`^(?:`+expr+`)$`, s)
	return ok && err == nil
}

func digestForm(s string) bool {
	return matchesForm(`[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}`, s)
}
func tagForm(s string) bool  { return matchesForm(`[\w][\w.-]{0,127}`, s) }
func pathForm(s string) bool { return matchesForm(`[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`, s) }
func registryForm(s string) bool {
	label := `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])`
	return matchesForm(`(?:`+label+`(?:\.`+label+`)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?`, s)
}
