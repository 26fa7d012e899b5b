package server

import (
	"context"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	socketPrefix = "unix://"
	socketMode   = 0o600 // the user of this process alone
)

// listen opens a TCP port, or a socket in the file system in place of one that a
// previous process left.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	path, ok := strings.CutPrefix(addr, socketPrefix)
	if !ok {
		return new(net.ListenConfig).Listen(ctx, "tcp", addr)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	config := net.ListenConfig{Control: restrict}
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, socketMode) // for systems on which restrict has no effect
}

// restrict sets the mode with which Linux creates a socket's file, so that no other
// user can connect in between.
func restrict(_, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), socketMode) })
}
