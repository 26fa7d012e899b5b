// Package reference parses references of images, as container tools do.
package reference

import (
	"fmt"
	"net/netip"
	"strings"
)

// Reference is a parsed image reference with defaults: the registry docker.io, the path
// prefix library/ and the tag latest.
type Reference struct {
	Repo   string // registry/path
	Tag    string // "" if there is only a digest
	Digest string // sha256:… or the like, or ""
}

// dockerHub is the registry of references without one.
const dockerHub = "docker.io"

// maxLength is that of a reference, complete with its registry and tag.
const maxLength = 512

// Parse parses [registry/]path[:tag][@digest] as container tools do.
func Parse(s string) (Reference, error) {
	invalid := func(why string) error { return fmt.Errorf("invalid image reference %q: %s", s, why) }
	tooLong := func() error {
		return fmt.Errorf("invalid image reference %.32q…: longer than %d bytes with all its parts", s, maxLength)
	}
	if len(s) > maxLength {
		return Reference{}, tooLong()
	}
	rest, digest, pinned := strings.Cut(s, "@")
	if pinned {
		algorithm, hex, _ := strings.Cut(digest, ":")
		digits, ok := map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}[algorithm]
		if !ok || len(hex) != digits || strings.Trim(hex, "0123456789abcdef") != "" {
			return Reference{}, invalid("digest must be sha256: and 64 hex digits, sha384: and 96, or sha512: and 128")
		}
	}
	ref := Reference{Digest: digest}
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		rest, ref.Tag = rest[:i], rest[i+1:]
		if !validTag(ref.Tag) {
			return Reference{}, invalid("invalid tag")
		}
	} else if !pinned {
		ref.Tag = "latest"
	}
	host, path, hasHost := strings.Cut(rest, "/")
	if !hasHost || !strings.ContainsAny(host, ".:") && host != "localhost" {
		host, path = dockerHub, rest
	}
	if host == "index."+dockerHub {
		host = dockerHub
	}
	if host == dockerHub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	if !validHost(host) {
		return Reference{}, invalid("invalid registry")
	}
	for part := range strings.SplitSeq(path, "/") {
		if !validPart(part) {
			return Reference{}, invalid("path must be lower-case letters and digits, separated by . _ __ - or /")
		}
	}
	ref.Repo = host + "/" + path
	if len(ref.String()) > maxLength {
		return Reference{}, tooLong()
	}
	return ref, nil
}

func (r Reference) String() string {
	s := r.Repo
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

func validTag(t string) bool {
	if t == "" || len(t) > 128 || t[0] == '.' || t[0] == '-' {
		return false
	}
	for _, c := range []byte(t) {
		if !isWordByte(c) && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func validHost(h string) bool {
	name, port, hasPort := strings.Cut(h, ":")
	if strings.HasPrefix(h, "[") {
		return validIPv6(h)
	}
	if hasPort && (port == "" || strings.Trim(port, "0123456789") != "") {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if !isWordByte(c) && c != '-' || c == '_' {
				return false
			}
		}
	}
	return true
}

// validIPv6 validates an address in brackets, which a port may follow.
func validIPv6(h string) bool {
	inner, rest, ok := strings.Cut(h[1:], "]")
	ip, err := netip.ParseAddr(inner)
	port, hasPort := strings.CutPrefix(rest, ":")
	return ok && err == nil && ip.Is6() && ip.Zone() == "" && hasPort == (rest != "") && strings.Trim(port, "0123456789") == "" && hasPort == (port != "")
}

// validPart validates one part of a path: lower-case letters and digits with single
// separators between them.
func validPart(p string) bool {
	sep := true // a separator may not come first
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case '0' <= c && c <= '9' || 'a' <= c && c <= 'z':
			sep = false
		case sep:
			return false
		case c == '-':
			for i+1 < len(p) && p[i+1] == '-' {
				i++
			}
			sep = true
		case c == '_':
			if i+1 < len(p) && p[i+1] == '_' {
				i++
			}
			sep = true
		case c == '.':
			sep = true
		default:
			return false
		}
	}
	return !sep
}
