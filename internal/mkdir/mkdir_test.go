package mkdir_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/mkdir"
)

func modeOf(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Mode()
}

func TestAll(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "there"), 0o700))
	require.NoError(t, mkdir.All(dir+"/there/a/b/", 0o755))
	for path, want := range map[string]fs.FileMode{"/there": 0o700, "/there/a": 0o755, "/there/a/b": 0o755} {
		assert.Equal(t, fs.ModeDir|want, modeOf(t, dir+path), path)
	}
	require.NoError(t, mkdir.All(dir+"/there", 0o755), "what is there is left alone")
	assert.Equal(t, fs.ModeDir|0o700, modeOf(t, dir+"/there"))

	require.NoError(t, os.Symlink("there", filepath.Join(dir, "link")))
	require.NoError(t, mkdir.All(dir+"/link/c", 0o711))
	assert.Equal(t, fs.ModeDir|0o711, modeOf(t, dir+"/there/c"))
}

func TestAll_WhereThereIsNoDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
	require.Error(t, mkdir.All(dir+"/file", 0o755))
	require.Error(t, mkdir.All(dir+"/file/below", 0o755))
	require.NoError(t, os.Symlink("nowhere", dir+"/dangling"))
	require.Error(t, mkdir.All(dir+"/dangling", 0o755))
}

// The next call would take it for one that was there before.
func TestAll_LeavesNoDirectoryOfAnotherMode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	var old syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: old.Max})) // no file can be opened
	err := mkdir.All(dir, 0o755)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old))
	require.ErrorIs(t, err, syscall.EMFILE)
	assert.NoDirExists(t, filepath.Dir(dir))
	require.NoError(t, mkdir.All(dir, 0o755))
	assert.Equal(t, fs.ModeDir|0o755, modeOf(t, dir))
}
