//go:build unix

package imagegc

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A file that cannot be opened is an error, and nothing is known.
func TestLoad_UnreadableFile(t *testing.T) {
	file := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	got, err := load(file + "/records")
	require.ErrorIs(t, err, ErrImageRecords)
	require.ErrorIs(t, err, unix.ENOTDIR)
	assert.NotNil(t, got)
	assert.Empty(t, got)
}
