package logpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Errors of OpenRegular.
var (
	ErrNotRegular = errors.New("not a regular file; a container with write access to the logs directory may have replaced it")
	ErrReplaced   = errors.New("replaced while it was opened")
)

// OpenRegular opens a regular file below the logs directory to read it. A container may have put a
// link there, which is not followed, or a FIFO, which is not waited for: the error wraps
// ErrNotRegular. It wraps ErrReplaced if another regular file took its place meanwhile.
func OpenRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("log %s: %w", name, ErrNotRegular)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("log %s: %w", name, ErrNotRegular)
	case !os.SameFile(before, info):
		err = fmt.Errorf("log %s: %w", name, ErrReplaced)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}
