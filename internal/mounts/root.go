package mounts

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// IsRoot asks the kernel whether path is where something is mounted. A last part
// that is a link is not followed. It is false for what is not there; known is
// false where the kernel cannot tell.
func IsRoot(path string) (is, known bool, err error) {
	is, known, err = isRoot(unix.AT_FDCWD, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, true, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("look for a mount at %s: %w", path, err)
	}
	return is, known, nil
}
