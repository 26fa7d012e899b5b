package containergc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A link that vanishes while it is checked is not counted as dangling.
func TestDangles_MissingLink(t *testing.T) {
	assert.False(t, dangles(filepath.Join(t.TempDir(), "link"), true))
}

// AG-10
func TestDangles_AfterClockWasSet(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink("nowhere", link))
	assert.False(t, dangles(link, false), "its log may be about to be created")
	for _, at := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		now := unix.NsecToTimeval(time.Now().Add(at).UnixNano())
		require.NoError(t, unix.Lutimes(link, []unix.Timeval{now, now}))
		assert.True(t, dangles(link, false), at)
	}
}
