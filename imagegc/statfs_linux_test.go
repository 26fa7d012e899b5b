package imagegc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime"
)

func TestStatfs_ReportsBytesAndInodes(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,nr_inodes=100"); err != nil {
		t.Skip("needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "image"), make([]byte, 256<<10), 0o600))
	fs, err := statfs(dir)
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), fs.At, time.Minute)
	fs.At = time.Time{}
	assert.Equal(t, runtime.FSUsage{
		Mountpoint: dir, CapacityBytes: 1 << 20, AvailableBytes: 768 << 10, UsedBytes: 256 << 10, Inodes: 100, InodesUsed: 2,
	}, fs)
}

func TestStatfs(t *testing.T) {
	fs, err := statfs(t.TempDir())
	require.NoError(t, err)
	assert.Positive(t, fs.CapacityBytes)
	assert.LessOrEqual(t, fs.AvailableBytes, fs.CapacityBytes)
	var raw unix.Statfs_t
	require.NoError(t, unix.Statfs(t.TempDir(), &raw))
	assert.LessOrEqual(t, fs.UsedBytes, fs.CapacityBytes)
	assert.LessOrEqual(t, fs.InodesUsed, raw.Files)
	_, err = statfs(t.TempDir() + "/none")
	assert.Error(t, err)
}
