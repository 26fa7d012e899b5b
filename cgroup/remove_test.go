//go:build linux

package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// RT-19: a container with a writable cgroup can nest cgroups deeper than any path.
func TestRemoveTree_DeepTree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "beside", "below"), 0o700))
	at, err := unix.Open(dir, openDir, 0)
	require.NoError(t, err)
	name := strings.Repeat("d", 200)
	for range 100 {
		require.NoError(t, unix.Mkdirat(at, name, 0o700))
		require.NoError(t, unix.Mkdirat(at, "beside it", 0o700))
		next, err := unix.Openat(at, name, openDir, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(at))
		at = next
	}
	require.NoError(t, unix.Close(at))

	visited := 0
	require.NoError(t, walkDirs(dir, func(int) error { visited++; return nil }, nil))
	assert.Equal(t, 1+2+2*100, visited)
	require.NoError(t, removeTree(t.Context(), dir))
	assert.NoDirExists(t, dir)
	require.NoError(t, removeTree(t.Context(), dir), "there is none")
}
