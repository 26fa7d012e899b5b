package pluginregistry

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Confined containers can make sockets in the directory. If it cannot be labelled, others still can.
func TestRun_SharesItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	r, err := New(Config{Dir: dir, Handlers: map[string]Handler{"CSIPlugin": nil}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var shared []string
	r.shareDir = func(path string) error {
		assert.DirExists(t, path)
		shared = append(shared, path)
		cancel()
		return errors.New("no labels")
	}
	require.NoError(t, r.Run(ctx))
	assert.Equal(t, []string{dir}, shared)
}
