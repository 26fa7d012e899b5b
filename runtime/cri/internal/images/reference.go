package images

import (
	"fmt"
	"strings"

	"github.com/sublet-dev/agent/runtime"
)

// Reference is an image reference taken apart: registry/path:tag@digest.
type Reference struct {
	Registry, Path, Tag, Digest string
}

// DockerHub is the registry of references without one.
const DockerHub = "docker.io"

const (
	maxReference = 4096
	maxPath      = 255 // of the repository's path, as the reference grammar has it
)

// ParseReference takes an image reference apart, by the grammar of the distribution
// project's reference package, which is the kubelet's. A reference without a
// registry is Docker Hub's, one of a single word its library's.
func ParseReference(name string) (Reference, error) {
	bad := func(why string) error { return fmt.Errorf("image %q: %s: %w", name, why, runtime.ErrInvalid) }
	if name == "" || len(name) > maxReference {
		return Reference{}, fmt.Errorf("image name of %d bytes: %w", len(name), runtime.ErrInvalid)
	}
	var r Reference
	rest, digest, pinned := strings.Cut(name, "@")
	if pinned && !digestForm(digest) {
		return Reference{}, bad("the digest is malformed")
	}
	r.Digest = digest
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.Contains(rest[i:], "/") {
		rest, r.Tag = rest[:i], rest[i+1:]
		if !tagForm(r.Tag) {
			return Reference{}, bad("the tag is malformed")
		}
	}
	first, more, split := strings.Cut(rest, "/")
	switch {
	case split && isRegistry(first):
		r.Registry, r.Path = first, more
		// A name with underscores is none by the grammar, which takes it for a part of the path; runtimes ask
		// the host of that name all the same.
		if !registryForm(first) && !pathForm(first) {
			return Reference{}, bad("the registry is malformed")
		}
	default:
		r.Registry, r.Path = DockerHub, rest
	}
	if len(name) == idLength && all(name, isLowerHex) {
		return Reference{}, bad("is an image's id, not its name")
	}
	if r.Registry == "index.docker.io" {
		r.Registry = DockerHub
	}
	if r.Registry == DockerHub && !strings.Contains(r.Path, "/") {
		r.Path = "library/" + r.Path
	}
	if len(r.Path) > maxPath {
		return Reference{}, bad(fmt.Sprintf("the repository is longer than %d bytes", maxPath))
	}
	for part := range strings.SplitSeq(r.Path, "/") {
		if !pathForm(part) {
			return Reference{}, bad("the repository is malformed; it must be in lower case")
		}
	}
	return r, nil
}

// Repository is the full name without tag and digest.
func (r Reference) Repository() string { return r.Registry + "/" + r.Path }

// RepositoryOf is the Repository of an image reference. One that is malformed is returned as it is.
func RepositoryOf(name string) string {
	r, err := ParseReference(name)
	if err != nil {
		return name
	}
	return r.Repository()
}

// withTag returns the reference as it is given to the runtime: as it was
// written, with the tag that is meant where there is none.
func withTag(name string, r Reference) string {
	if r.Tag == "" && r.Digest == "" {
		return name + ":latest"
	}
	return name
}

// isRegistry tells a registry's name from the first part of a path.
func isRegistry(s string) bool {
	return s == "localhost" || strings.ContainsAny(s, ".:[") || strings.ToLower(s) != s
}

// The forms of the parts are those of the distribution specification, written
// out: they are asked for with each container that starts.

// idLength is that of an image's id, which is a digest without its algorithm.
const idLength = 64

// digestForm: algorithm:hex, of the algorithms that are in use.
func digestForm(s string) bool {
	algorithm, sum, _ := strings.Cut(s, ":")
	length, known := map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}[algorithm]
	return known && len(sum) == length && all(sum, isLowerHex)
}

func tagForm(s string) bool {
	return s != "" && len(s) <= 128 && s[0] != '.' && s[0] != '-' &&
		all(s, func(b byte) bool { return isAlnum(b) || b == '_' || b == '.' || b == '-' })
}

// pathForm: lower-case words with one dot, one or two underscores or any number
// of dashes between them.
func pathForm(s string) bool {
	if s == "" || !isLowerOrDigit(s[0]) || !isLowerOrDigit(s[len(s)-1]) {
		return false
	}
	for i := 0; i < len(s); {
		if isLowerOrDigit(s[i]) {
			i++
			continue
		}
		n := 1
		for s[i+n] == s[i] { // ends: the last byte is no separator
			n++
		}
		one := s[i] == '.' && n == 1 || s[i] == '_' && n <= 2 || s[i] == '-'
		if !one || !isLowerOrDigit(s[i+n]) {
			return false
		}
		i += n
	}
	return true
}

// registryForm: a DNS name or an IPv6 address in brackets, and maybe a port.
func registryForm(s string) bool {
	host := s
	if inside, ok := strings.CutPrefix(s, "["); ok {
		address, port, ok := strings.Cut(inside, "]")
		return ok && address != "" && all(address, func(b byte) bool { return isHex(b) || b == ':' }) &&
			(port == "" || port[0] == ':' && len(port) > 1 && all(port[1:], isDigit))
	}
	if i := strings.IndexByte(s, ':'); i >= 0 {
		if host = s[:i]; len(s) == i+1 || !all(s[i+1:], isDigit) {
			return false
		}
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' || !all(label, func(b byte) bool { return isAlnum(b) || b == '-' }) {
			return false
		}
	}
	return true
}

func all(s string, is func(byte) bool) bool {
	for i := range len(s) {
		if !is(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(b byte) bool        { return b >= '0' && b <= '9' }
func isAlnum(b byte) bool        { return isDigit(b) || b|0x20 >= 'a' && b|0x20 <= 'z' }
func isLowerOrDigit(b byte) bool { return isDigit(b) || b >= 'a' && b <= 'z' }
func isHex(b byte) bool          { return isDigit(b) || b|0x20 >= 'a' && b|0x20 <= 'f' }
func isLowerHex(b byte) bool     { return isDigit(b) || b >= 'a' && b <= 'f' }
