//go:build !linux

package mounts

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isRoot needs statx.
func isRoot(int, string) (is, known bool, err error) { return false, false, nil }

func isFixed(int, string) bool { return false }

// IsShared returns errors.ErrUnsupported.
func IsShared(string) (bool, error) { return false, errors.ErrUnsupported }

func allowAccess(parent int, name string) error {
	return unix.Fchmodat(parent, name, 0o700, unix.AT_SYMLINK_NOFOLLOW)
}
