package unixsocket_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/unixsocket"
)

// A process that is too busy to accept still serves its socket.
func TestIsServed_CountsFullQueues(t *testing.T) {
	fd, path := bound(t)
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

// bound makes a socket on which no process listens yet.
func bound(t *testing.T) (fd int, path string) {
	t.Helper()
	path = socketPath(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	return fd, path
}

// A process that has made its socket and does not listen yet is not overtaken.
func TestIsServed_WaitsForNewSockets(t *testing.T) {
	require.Eventually(t, func() bool { // a busy machine may take longer than a socket is new
		fd, path := bound(t)
		time.AfterFunc(20*time.Millisecond, func() { assert.NoError(t, unix.Listen(fd, 1)) })
		return unixsocket.IsServed(t.Context(), path)
	}, time.Minute, time.Millisecond)
	for _, age := range []time.Duration{time.Minute, -time.Minute} {
		_, path := bound(t)
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(path, at, at))
		require.Eventually(t, func() bool { // a busy machine is slow at times
			began := time.Now()
			require.False(t, unixsocket.IsServed(t.Context(), path), "left, or made before the clock was set")
			return time.Since(began) < 500*time.Millisecond // for so long a socket is new
		}, time.Minute, time.Millisecond)
	}
}

// A lock that another program keeps delays the socket, until ctx ends or it is released.
func TestListen_WaitsForTheLock(t *testing.T) {
	path := socketPath(t)
	dir, err := os.Open(filepath.Dir(path))
	require.NoError(t, err)
	defer dir.Close()
	fd := int(dir.Fd())
	require.NoError(t, unix.Flock(fd, unix.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = unixsocket.Listen(ctx, path)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoFileExists(t, path)
	time.AfterFunc(20*time.Millisecond, func() { assert.NoError(t, unix.Flock(fd, unix.LOCK_UN)) })
	l, err := unixsocket.Listen(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
