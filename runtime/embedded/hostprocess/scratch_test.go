//go:build linux || darwin

package hostprocess

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// OW-3: a container with very many files delays no measurement, and its files are
// counted over several.
func TestScratchUsage_ManyFiles(t *testing.T) {
	dir := t.TempDir()
	const files = 3_000
	for i := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	s := &scratchUsage{limit: 1}
	s.measure(dir)
	require.NotNil(t, s.walk, "the limit of a measurement")
	for s.walk != nil {
		s.measure(dir)
	}
	assert.Equal(t, uint64(files+1), s.last.Inodes)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "one more"), nil, 0o600))
	assert.Equal(t, uint64(files+1), s.measure(dir).Inodes, "less is not reported meanwhile")
	for s.walk != nil {
		s.measure(dir)
	}
	assert.Equal(t, uint64(files+2), s.last.Inodes)
	s.measure(dir)
	s.close()
	assert.Nil(t, s.walk)
	assert.Equal(t, uint64(files+2), s.measure(dir).Inodes, "the last result of a container that has exited")
	assert.Nil(t, s.walk)
}

// OW-3: the size of a file says nothing about the disk that it uses.
func TestScratchUsage_SparseFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sparse")
	require.NoError(t, os.WriteFile(file, make([]byte, 10_000), 0o600))
	require.NoError(t, os.Truncate(file, 1<<40))
	s := &scratchUsage{}
	assert.Less(t, s.measure(dir).Bytes, uint64(1<<20))
	assert.GreaterOrEqual(t, s.measure(dir).Bytes, uint64(10_000))
	assert.Nil(t, s.walk)
}

// A container that could not be created leaves nothing behind: it is never removed.
func TestExecutor_CreateFails(t *testing.T) {
	h := New(Config{Root: t.TempDir(), Unprivileged: true})
	defer func() { assert.NoError(t, h.Close()) }()
	dir, err := h.scratch("c1")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, workDir), 0o700))
	c := &embedded.Container{ID: "c1", Pod: &v1.PodSandboxConfig{}, Config: &v1.ContainerConfig{Command: []string{"true"}}, Image: &embedded.Image{}}
	require.ErrorIs(t, h.Create(t.Context(), c), fs.ErrExist)
	assert.NoDirExists(t, dir)
	require.NoError(t, h.Create(t.Context(), c))
	assert.DirExists(t, dir)
	h.Remove(c)
	assert.NoDirExists(t, dir)
}

// The runtime may be asked to remove a container after it was closed. That opens no root directory again.
func TestExecutor_RemovesAfterClose(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	h := New(Config{Unprivileged: true})
	c := &embedded.Container{ID: "c1", Pod: &v1.PodSandboxConfig{}, Config: &v1.ContainerConfig{Command: []string{"true"}}, Image: &embedded.Image{}}
	require.NoError(t, h.Create(t.Context(), c))
	require.NoError(t, h.Close())
	h.Remove(c)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
}
