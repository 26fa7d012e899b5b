// Package mkdir makes directories that others use: with the mode that was asked
// for, whatever the umask of the process, which services often set to 077.
package mkdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// All makes a directory and those above it that are missing. The ones that it
// makes get exactly this mode; what is there already stays as it is.
func All(path string, mode fs.FileMode) error {
	path = filepath.Clean(path)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if above := filepath.Dir(path); above != path {
		if err := All(above, mode); err != nil {
			return err
		}
	}
	err := os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrExist) {
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			return nil // somebody else was faster
		}
	}
	if err != nil {
		return err
	}
	return chmod(path, mode)
}

// chmod gives a directory that was just made its mode. Whoever may write to the
// one above it may have put something else in its place: a link is not followed.
func chmod(path string, mode fs.FileMode) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chmod(mode), dir.Close())
}
