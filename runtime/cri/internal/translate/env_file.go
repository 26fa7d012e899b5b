package translate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Bounds of files that hold variables.
const (
	envFileLimit  = 64 << 10
	envKeyLimit   = 128
	envValueLimit = 32 << 10
)

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
	all, err := parseEnvFile(string(text))
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", where, err)
	}
	value, ok := all[r.Key]
	if !ok && !optional {
		return "", false, fmt.Errorf("%s: there is no such key: %w", where, runtime.ErrNotFound)
	}
	return value, ok, nil
}

// readInside reads a regular file below a directory that containers write to: no
// link leads out of it, and nothing that could block is opened.
func readInside(dir, path string) ([]byte, error) {
	if !filepath.IsLocal(path) {
		return nil, fmt.Errorf("the path leads out of the volume: %w", runtime.ErrInvalid)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errors.New("the volume cannot be opened")
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > envFileLimit:
		return nil, fmt.Errorf("not a regular file of at most %d bytes: %w", envFileLimit, runtime.ErrInvalid)
	}
	return io.ReadAll(io.LimitReader(f, envFileLimit))
}

// parseEnvFile reads lines of the form NAME='value'. A value stands in single
// quotes and is taken as it is, newlines and all; blanks around the equals sign
// and at the beginning of a line do not count, nor do empty lines and those
// that begin with '#'. Of one name the last value counts. Errors tell lines,
// never values.
func parseEnvFile(text string) (map[string]string, error) {
	out := make(map[string]string)
	line := 1
	bad := func(why string) error { return fmt.Errorf("line %d: %s: %w", line, why, runtime.ErrInvalid) }
	for text != "" {
		trimmed := strings.TrimLeft(text, " \t\r\n")
		line += strings.Count(text[:len(text)-len(trimmed)], "\n")
		if text = trimmed; text == "" {
			break
		}
		if text[0] == '#' {
			_, text, _ = strings.Cut(text, "\n")
			line++
			continue
		}
		name, rest, ok := strings.Cut(text, "=")
		name = strings.TrimRight(name, " \t")
		if !ok || strings.Contains(name, "\n") || !isEnvName(name) || len(name) > envKeyLimit {
			return nil, bad("not of the form NAME='value'")
		}
		value, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimLeft(rest, " \t"), "'"), "'")
		if quoted := strings.TrimLeft(text[strings.IndexByte(text, '=')+1:], " \t"); !ok || !strings.HasPrefix(quoted, "'") {
			return nil, bad("the value is not in single quotes")
		}
		if len(value) > envValueLimit {
			return nil, bad("the value is too long")
		}
		after, rest, _ := strings.Cut(rest, "\n")
		if strings.TrimSpace(after) != "" {
			return nil, bad("something follows the value")
		}
		out[name] = value
		line += strings.Count(value, "\n") + 1
		text = rest
	}
	return out, nil
}
