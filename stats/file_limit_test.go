//go:build linux

package stats

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The number of files kept open depends on how many the process may have.
func TestFileLimit(t *testing.T) {
	for limit, want := range map[uint64]int{0: 0, 7: 0, 1024: 128, 4096: 512, 32768: 4096, 1 << 20: 4096, 1<<64 - 1: 4096} {
		assert.Equal(t, want, fileLimit(limit), "of %d", limit)
	}
	k := newFDCache()
	assert.Positive(t, k.maxFiles)
	k.maxFiles = 1
	for i, want := range []bool{true, false, true} {
		f, err := os.Open("/proc/self/stat")
		require.NoError(t, err)
		name := []string{"a", "b", "a"}[i]
		if assert.Equal(t, want, k.keep(name, f)); !want {
			require.NoError(t, f.Close())
		}
	}
	k.sweep()
	time.Sleep(0)
	k.sweep()
	k.sweep()
	assert.Empty(t, k.files)
}
