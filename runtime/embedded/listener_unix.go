//go:build unix

package embedded

import (
	"net"

	"golang.org/x/sys/unix"
)

// endListener closes a listener, and has the kernel refuse connections from now on, also where a process that is
// being started has a copy of its socket still, until it is what it becomes.
func endListener(lis net.Listener) {
	if tcp, ok := lis.(*net.TCPListener); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) }) //nolint:gosec // a descriptor
		}
	}
	_ = lis.Close() // it is closed either way
}
