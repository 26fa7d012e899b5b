// Package selinux labels directories of the node for containers that SELinux confines.
package selinux

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	// sharedLabel has the type of files of containers and no categories, so that it is for all of them.
	sharedLabel = "system_u:object_r:container_file_t:s0"
	labelName   = "security.selinux" // of the extended attribute
	// enforceFile exists on a node with SELinux.
	enforceFile = "/sys/fs/selinux/enforce"
)

// ShareDir labels a directory so that all containers that have it may use it, and what is made in it from then on. On a
// node without SELinux it does nothing.
func ShareDir(path string) error {
	return shareDir(path, enforceFile)
}

func shareDir(path, enforceFile string) error {
	if _, err := os.Stat(enforceFile); err != nil {
		return nil //nolint:nilerr // without SELinux
	}
	if err := unix.Setxattr(path, labelName, []byte(sharedLabel), 0); err != nil {
		return &os.PathError{Op: "setxattr", Path: path, Err: err}
	}
	return nil
}
