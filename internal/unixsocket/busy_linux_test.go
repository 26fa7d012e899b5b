package unixsocket_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/unixsocket"
)

// A process that is too busy to accept still serves its socket.
func TestIsServed_CountsFullQueues(t *testing.T) {
	path := socketPath(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	require.NoError(t, unix.Listen(fd, 0))
	waiting, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer waiting.Close()
	_, err = net.Dial("unix", path)
	require.ErrorIs(t, err, unix.EAGAIN, "the queue is full")
	require.True(t, unixsocket.IsServed(t.Context(), path))
	_, err = unixsocket.Listen(t.Context(), path)
	require.ErrorIs(t, err, unixsocket.ErrInUse)
}
