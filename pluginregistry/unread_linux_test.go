package pluginregistry

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// restrict takes the rights of root on files from the test, whose thread ends with it.
func restrict(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread()
	require.NoError(t, unix.Setfsuid(65534))
	t.Cleanup(func() { require.NoError(t, unix.Setfsuid(0)) })
}

// A plugin in a directory that cannot be read for a moment, as without free file descriptors, is
// not gone: its volumes and devices are in use.
func TestSockets_UnreadDirectories(t *testing.T) {
	dir, err := os.MkdirTemp("", "reg") //nolint:usetesting // its name is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // for another user
	for _, name := range []string{"a.sock", "below/b.sock", "below/deep/c.sock", "beside/d.sock"} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755)) //nolint:gosec // for another user
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
	}
	r, err := New(Config{Dir: dir, Handlers: map[string]Handler{"CSIPlugin": nil}})
	require.NoError(t, err)
	all, err := r.sockets()
	require.NoError(t, err)
	require.Len(t, all, 4)
	for path, id := range all {
		r.known[path] = &socket{id: id}
	}
	below := filepath.Join(dir, "below")
	require.NoError(t, os.Chmod(below, 0))
	t.Cleanup(func() { require.NoError(t, os.Chmod(below, 0o755)) }) //nolint:gosec // to be removed
	restrict(t)
	_, err = os.ReadDir(below)
	require.ErrorIs(t, err, os.ErrPermission)

	delete(r.known, filepath.Join(dir, "below", "b.sock")) // one that is not known is not found
	found, err := r.sockets()
	require.NoError(t, err)
	delete(all, filepath.Join(below, "b.sock"))
	require.Equal(t, all, found)
	require.True(t, r.unread[below])
}
