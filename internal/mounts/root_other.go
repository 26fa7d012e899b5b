//go:build !linux

package mounts

import "errors"

// isRoot needs statx.
func isRoot(int, string) (is, known bool, err error) { return false, false, nil }

func isFixed(int, string) bool { return false }

// IsShared returns errors.ErrUnsupported.
func IsShared(string) (bool, error) { return false, errors.ErrUnsupported }
