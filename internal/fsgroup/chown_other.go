//go:build !linux

package fsgroup

import "golang.org/x/sys/unix"

const openPath = unix.O_RDONLY | unix.O_NONBLOCK

func chown(fd, gid int) error { return unix.Fchown(fd, -1, gid) }
