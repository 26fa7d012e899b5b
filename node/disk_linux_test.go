package node

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDiskCapacity(t *testing.T) {
	dir := t.TempDir()
	existing, err := DiskCapacity(dir)
	require.NoError(t, err)
	assert.Positive(t, existing.Value())
	later, err := DiskCapacity(filepath.Join(dir, "not", "yet"))
	require.NoError(t, err)
	assert.Equal(t, existing.Value(), later.Value())
}
