//go:build unix

package unixsocket

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// restrict sets the mode with which Linux creates a socket's file, so that no other
// user can connect in between.
func restrict(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), Mode) })
}
