package translate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// envFileLimit bounds files that hold variables.
const envFileLimit = 64 << 10

// fileKey returns what a file in one of the pod's volumes gives a variable,
// such as an init container may have written it.
func (tr *Translator) fileKey(r *corev1.FileKeySelector) (string, bool, error) {
	optional := r.Optional != nil && *r.Optional
	where := fmt.Sprintf("key %q of file %q in volume %q", r.Key, r.Path, r.VolumeName)
	volume := tr.Options.Volumes[r.VolumeName]
	if volume.HostPath == "" {
		return "", false, fmt.Errorf("%s: the volume is not mounted on the node: %w", where, runtime.ErrNotReady)
	}
	text, err := readInside(volume.HostPath, r.Path)
	if errors.Is(err, os.ErrNotExist) {
		if optional {
			return "", false, nil
		}
		err = runtime.ErrNotFound
	}
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", where, err)
	}
	value, ok, err := envFileValue(string(text), r.Key)
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", where, err)
	}
	if !ok && !optional {
		return "", false, fmt.Errorf("%s: there is no such key: %w", where, runtime.ErrNotFound)
	}
	return value, ok, nil
}

// readInside reads a regular file below a directory that containers write to: no
// link leads out of it, and nothing else is opened. A slash at the beginning of the
// path is the directory itself.
func readInside(dir, path string) ([]byte, error) {
	if path = strings.TrimLeft(path, "/"); !filepath.IsLocal(path) {
		return nil, fmt.Errorf("the path leads out of the volume: %w", runtime.ErrInvalid)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errors.New("the volume cannot be opened")
	}
	defer func() { _ = root.Close() }()
	f, err := openRegular(root, path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > envFileLimit:
		return nil, errNoEnvFile
	}
	return io.ReadAll(io.LimitReader(f, envFileLimit))
}

var errNoEnvFile = fmt.Errorf("not a regular file of at most %d bytes: %w", envFileLimit, runtime.ErrInvalid)

// envFileValue returns the value of a variable in lines of the form NAME='value', and whether there is
// one, by the rules of the kubelet. A value stands in single quotes and is taken as it is, newlines and
// all; a comment may follow it. Blanks at the beginning of a line do not count, nor do empty lines and
// those that begin with '#'. As in a shell, a blank after the equals sign is an empty value, and before
// it an error. Of one name the first value counts, and what follows that is not looked at. Errors tell
// lines, never values.
func envFileValue(text, key string) (value string, ok bool, err error) {
	r := envReader{rest: text}
	for {
		line, more := r.line()
		if !more {
			return "", false, nil
		}
		line = strings.TrimLeft(line, blanks)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, assigns := strings.Cut(line, "=")
		if !assigns || name == "" || strings.TrimRight(name, blanks) != name {
			return "", false, r.bad("not of the form NAME='value'")
		}
		if value, err = r.value(rest); err != nil || name == key {
			return value, err == nil, err
		}
	}
}

const blanks = " \t"

// envReader reads a file of variables line by line.
type envReader struct {
	rest   string
	number int // of the last line
}

func (r *envReader) bad(why string) error {
	return fmt.Errorf("line %d: %s: %w", r.number, why, runtime.ErrInvalid)
}

// line returns the next line, which may end as on Windows, or false at the end.
func (r *envReader) line() (line string, ok bool) {
	if r.rest == "" {
		return "", false
	}
	r.number++
	line, r.rest, _ = strings.Cut(r.rest, "\n")
	return strings.TrimSuffix(line, "\r"), true
}

// value returns the value that begins after an equals sign.
func (r *envReader) value(rest string) (string, error) {
	if rest != strings.TrimLeft(rest, blanks) {
		return "", nil
	}
	rest, quoted := strings.CutPrefix(rest, "'")
	if !quoted {
		return "", r.bad("the value is not in single quotes")
	}
	begin := *r
	var value strings.Builder
	for {
		part, after, closed := strings.Cut(rest, "'")
		value.WriteString(part)
		if closed {
			if after = strings.TrimLeft(after, blanks); after != "" && after[0] != '#' {
				return "", r.bad("something follows the value")
			}
			return value.String(), nil
		}
		value.WriteByte('\n')
		if rest, closed = r.line(); !closed {
			return "", begin.bad("the value has no end")
		}
	}
}
