package mounts

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestIsShared(t *testing.T) {
	const table = `27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
42 27 254:0 /a /b\040c rw,relatime shared:1 - ext4 /dev/vda rw
421 27 254:0 /a /d rw,relatime shared:2 master:1 - ext4 /dev/vda rw
43 27 254:0 /a /e rw,relatime master:1 - shared:7 /dev/vda rw
44 27 torn
`
	for id, want := range map[uint64]bool{27: false, 42: true, 421: true, 43: false, 44: false, 4: false, 99: false} {
		assert.Equal(t, want, isShared(table, id), "mount %d", id)
	}
}
