package logpath_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/logpath"
)

func TestOpenRegular(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "log"), []byte("text"), 0o600))
	require.NoError(t, os.Symlink("log", filepath.Join(dir, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir"), 0o700))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()

	f, info, err := logpath.OpenRegular(root, "log")
	require.NoError(t, err)
	defer f.Close()
	assert.EqualValues(t, 4, info.Size())
	for _, name := range []string{"link", "dir", "fifo"} {
		_, _, err := logpath.OpenRegular(root, name)
		require.ErrorIs(t, err, logpath.ErrNotRegular, name)
	}
	_, _, err = logpath.OpenRegular(root, "none")
	require.ErrorIs(t, err, os.ErrNotExist)
}
