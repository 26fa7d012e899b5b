// Package mkdir creates directories with a given mode, independent of the umask of the
// process, which services often set to 077.
package mkdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// All creates a directory and its missing parents, each with exactly this mode. Existing
// directories are not changed. One that cannot be given its mode is removed again.
func All(path string, mode fs.FileMode) error {
	path = filepath.Clean(path)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := All(parent, mode); err != nil {
			return err
		}
	}
	err := os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrExist) {
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			return nil // created concurrently
		}
	}
	if err != nil {
		return err
	}
	if err := chmod(path, mode); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// chmod sets the mode of a new directory. A process with write access to the parent may
// have replaced it, so a symbolic link is not followed.
func chmod(path string, mode fs.FileMode) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chmod(mode), dir.Close())
}
