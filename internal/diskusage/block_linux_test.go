package diskusage

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// Blocks are counted in fragments, where a file system has them.
func TestBlockSize(t *testing.T) {
	assert.Equal(t, uint64(512), blockSize(&unix.Statfs_t{Frsize: 512, Bsize: 4096}))
	assert.Equal(t, uint64(4096), blockSize(&unix.Statfs_t{Bsize: 4096}))
	u := usage(&unix.Statfs_t{Blocks: 3, Bfree: 2, Frsize: 512, Bsize: 4096})
	assert.Equal(t, uint64(1024), u.CapacityBytes-u.UsedBytes)
	assert.Equal(t, []uint64{0, 0, 2}, []uint64{amount(int64(-1)), amount(uint64(0)), amount(int64(2))})
	assert.Zero(t, usage(&unix.Statfs_t{Files: ^uint64(0), Ffree: ^uint64(0)}).Inodes, "there is no limit")
}
