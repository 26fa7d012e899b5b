package csi

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// VD-7: whether volumes are in use is unknown while records cannot be read, which is not the same as none.
func TestManager_VolumesInUseMayBeUnknown(t *testing.T) {
	root := t.TempDir()
	m, err := New(Config{Root: root, NodeName: "node"})
	require.NoError(t, err)
	require.NoError(t, os.Symlink("pods", filepath.Join(root, "pods"))) // a loop
	assert.Nil(t, m.VolumesInUse())
	require.NoError(t, os.Remove(filepath.Join(root, "pods")))
	none := m.VolumesInUse()
	assert.NotNil(t, none)
	assert.Empty(t, none)
}
