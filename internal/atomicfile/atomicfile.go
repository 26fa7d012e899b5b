// Package atomicfile writes files that are there whole or not at all, whatever
// becomes of the process or the machine meanwhile.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Write puts a file with that content in the place of what is at path, readable
// by its owner only. When it returns nil the file lasts through a power cut; with
// an error what was there before still is, or the new file already. Its directory
// must exist.
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
	d, err := os.Open(dir) //nolint:gosec // the path is the configuration's
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RemovePartial removes what calls of Write for this path left that did not come
// to their end. None may be under way.
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

// DamagedSuffix ends the name of a file that SetAside has moved.
const DamagedSuffix = ".damaged"

// SetAside renames a file that cannot be understood, so that it is neither read
// again nor written over: it may be of use to somebody. One that was set aside
// before gives way.
func SetAside(path string) error { return os.Rename(path, path+DamagedSuffix) }

// partial begins the names of files that are being written.
func partial(path string) string { return "." + filepath.Base(path) + "." }
