package hostprocess

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// RT-19: a container with very many files delays no measurement, and its files are
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

// RT-19: the size of a file says nothing about the disk that it uses.
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
