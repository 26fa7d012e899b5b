//go:build !linux

package mounts

// isRoot needs statx.
func isRoot(int, string) (is, known bool, err error) { return false, false, nil }

func isFixed(int, string) bool { return false }
