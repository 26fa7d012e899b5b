package volume_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/volume"
)

// A manifest that could not be read is read at the next time, although the file has not changed since.
func TestFiles_ReadsWhatItCouldNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pv.yaml")
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: one}\nspec: {nfs: {server: nas, path: /}}\n"), 0o600))
	old := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(path, old, old))
	files := volume.NewFiles(path)

	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	restore := func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }
	t.Cleanup(restore)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	_, err := files.PersistentVolume(t.Context(), "one")
	restore()
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)

	_, err = files.PersistentVolume(t.Context(), "one")
	require.NoError(t, err)
}
