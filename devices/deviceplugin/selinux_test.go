package deviceplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/devices"
)

// Confined containers can make sockets in the directory. If it cannot be labelled, others still can.
func TestRun_SharesItsDirectory(t *testing.T) {
	parent, err := os.MkdirTemp("", "dp") //nolint:usetesting // its name is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(parent)) })
	m, err := devices.New(devices.Config{StateFile: filepath.Join(parent, "state")})
	require.NoError(t, err)
	dir := filepath.Join(parent, "plugins")
	s, err := New(Config{Dir: dir, Devices: m})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var shared []string
	s.shareDir = func(path string) error {
		assert.DirExists(t, path)
		shared = append(shared, path)
		return errors.New("no labels")
	}
	listener, err := s.listen(ctx)
	require.NoError(t, err)
	cancel()
	require.NoError(t, listener.Close())
	assert.Equal(t, []string{dir}, shared)
}
