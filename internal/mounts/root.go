package mounts

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// IsRoot reports whether path is a mount point. A symbolic link as the last element is
// not followed. It is false for a missing file; known is false if the kernel does not
// support the query. It does not wait for a file system that does not answer.
func IsRoot(path string) (is, known bool, err error) {
	is, known, err = isRoot(unix.AT_FDCWD, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, true, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("check mount point %s: %w", path, err)
	}
	return is, known, nil
}
