//go:build unix

package diskusage

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The size of a file is found as that of a device.
func TestDevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	_, err := Device(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	usage, err := Device(path)
	require.NoError(t, err)
	assert.EqualValues(t, 4096, usage.CapacityBytes)
	assert.Zero(t, usage.UsedBytes)
	assert.WithinDuration(t, time.Now(), usage.At, time.Minute)
}
