// Package atomicfile writes files atomically and durably: a file is complete or does
// not exist, even after a crash of the process or the machine.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write replaces the file at path, with mode 0600. After it has returned nil the file
// survives a power failure. After an error the file is either the old or the new one.
// The directory must exist.
func Write(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, partial(path)+"*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the path comes from the configuration
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RemovePartial removes the temporary files of interrupted calls of Write for this path.
// It must not be called concurrently with Write.
func RemovePartial(path string) error {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partial(path)) && e.Type().IsRegular() {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// DamagedSuffix is the suffix of a file renamed by SetAside.
const DamagedSuffix = ".damaged"

// SetAside renames a damaged file, so that it is neither read again nor overwritten. It
// replaces a file that was renamed before.
func SetAside(path string) error { return os.Rename(path, path+DamagedSuffix) }

// DamagedError is the error of a file that can never be read. It was renamed by SetAside.
type DamagedError struct {
	Path string // before
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s: %v; renamed to %s", e.Path, e.Err, e.Path+DamagedSuffix)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// Load is Read after RemovePartial, so it must not be called concurrently with Write.
func Load(path string, limit int64, decode func([]byte) error) error {
	if err := RemovePartial(path); err != nil {
		return err
	}
	return Read(path, limit, decode)
}

// Read reads a file that Write has written and passes its content to decode. The error is
//   - fs.ErrNotExist without the file,
//   - a *DamagedError if it has more than limit bytes or is not accepted by decode: it has
//     been renamed,
//   - anything else otherwise: what is at path is still there.
func Read(path string, limit int64, decode func([]byte) error) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", path) // another's: not even renamed
	}
	f, err := os.Open(path) //nolint:gosec // the path comes from the configuration
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if int64(len(data)) > limit {
		return damaged(path, fmt.Errorf("larger than %d bytes", limit))
	}
	if err := decode(data); err != nil {
		return damaged(path, err)
	}
	return nil
}

func damaged(path string, cause error) error {
	if err := SetAside(path); err != nil {
		return fmt.Errorf("%s: %w; rename damaged file: %w", path, cause, err)
	}
	return &DamagedError{path, cause}
}

// partial returns the prefix of the names of temporary files.
func partial(path string) string { return "." + filepath.Base(path) + "." }
