package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/sublet-dev/agent/internal/unixsocket"
)

const socketPrefix = "unix://"

// listen opens a TCP port, or a socket in the file system in place of one that a
// previous process left.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, socketPrefix); ok {
		return unixsocket.Listen(ctx, path)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w; stop the program that listens there, or choose another address", err)
	}
	return l, err
}
