package translate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

// A device that a container has made in its volume is not opened: that would be the agent's doing, with the rights of root.
func TestFileKey_OpensNoDevice(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Close(socket)) })
	require.NoError(t, unix.Bind(socket, &unix.SockaddrUnix{Name: filepath.Join(dir, "socket")}))
	names := []string{"pipe", "socket"}
	if os.Geteuid() == 0 { // of a number that no driver has, which only an attempt to open it shows
		require.NoError(t, unix.Mknod(filepath.Join(dir, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(511, 511))))
		require.NoError(t, os.Symlink("device", filepath.Join(dir, "link")))
		names = append(names, "device", "link")
	}
	for _, name := range names {
		_, err := readInside(dir, name)
		require.ErrorIs(t, err, runtime.ErrInvalid, name)
		assert.ErrorContains(t, err, "not a regular file", name)
	}
}
