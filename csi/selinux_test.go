package csi

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Confined containers can make sockets of drivers in the directory for them.
func TestRun_SharesTheDirectoryOfDrivers(t *testing.T) {
	root := t.TempDir()
	m, err := New(Config{Root: root, NodeName: "node"})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	var shared []string
	m.shareDir = func(path string) error {
		assert.DirExists(t, path)
		shared = append(shared, path)
		cancel()
		return nil
	}
	require.NoError(t, m.Run(ctx))
	assert.Equal(t, []string{filepath.Join(root, "plugins")}, shared)
}
