package unixsocket_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/unixsocket"
)

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "us") //nolint:usetesting // the name of the test would make it too long
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "s.sock")
}

// leave makes a socket as a killed process leaves it.
func leave(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
}

func TestListen_IsForThisUserAlone(t *testing.T) {
	path := socketPath(t)
	l, err := unixsocket.Listen(t.Context(), path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
}

func TestListen_ReplacesWhatAKilledProcessLeft(t *testing.T) {
	path := socketPath(t)
	leave(t, path)
	l, err := unixsocket.Listen(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestListen_LeavesThoseOfOthersAlone(t *testing.T) {
	path := socketPath(t)
	l, err := unixsocket.Listen(t.Context(), path)
	require.NoError(t, err)
	_, err = unixsocket.Listen(t.Context(), path)
	require.ErrorIs(t, err, unixsocket.ErrInUse)
	require.ErrorContains(t, err, path)
	conn, err := net.Dial("unix", path)
	require.NoError(t, err, "it is still served")
	require.NoError(t, conn.Close())
	require.NoError(t, l.Close())

	require.NoError(t, os.WriteFile(path, []byte("notes"), 0o600))
	_, err = unixsocket.Listen(t.Context(), path)
	require.Error(t, err)
	require.NoError(t, unixsocket.RemoveStale(path))
	require.FileExists(t, path)
}

// What has taken the place of a socket, as a kubelet's, outlasts it. A removed one is no error.
func TestListen_CloseLeavesReplacements(t *testing.T) {
	path := socketPath(t)
	for range 2 {
		first, err := unixsocket.Listen(t.Context(), path)
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		second, err := net.Listen("unix", path)
		require.NoError(t, err)
		require.NoError(t, first.Close())
		conn, err := net.Dial("unix", path)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.NoError(t, second.Close())
		require.Error(t, first.Close(), "it is closed")
	}
	l, err := unixsocket.Listen(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, l.Close())
}

func TestCheckPath(t *testing.T) {
	longest := "/" + strings.Repeat("x", 106)
	require.NoError(t, unixsocket.CheckPath(longest))
	require.ErrorContains(t, unixsocket.CheckPath(longest+"x"), "is too long: the path of a socket has at most 107 bytes")
	require.EqualError(t, unixsocket.CheckPath("x"), `"x" must be an absolute path`)
	require.Error(t, unixsocket.CheckPath(""))
}

// Of processes that start at once, in place of one that was killed, exactly one serves the socket.
func TestListen_OneOfManyGetsIt(t *testing.T) {
	path := socketPath(t)
	for range 300 {
		leave(t, path)
		old := time.Now().Add(-time.Minute)
		require.NoError(t, os.Chtimes(path, old, old))
		start, results := make(chan struct{}), make(chan any, 4)
		for range cap(results) {
			go func() {
				<-start
				l, err := unixsocket.Listen(t.Context(), path)
				if err != nil {
					results <- err
					return
				}
				results <- l
			}()
		}
		close(start)
		var winners []net.Listener
		for range cap(results) {
			switch r := (<-results).(type) {
			case net.Listener:
				winners = append(winners, r)
			case error:
				require.ErrorIs(t, r, unixsocket.ErrInUse)
			}
		}
		require.Len(t, winners, 1)
		conn, err := net.Dial("unix", path)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.NoError(t, winners[0].Close())
	}
}
