package containergc

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A link that vanishes while it is looked at is left to whoever removed it.
func TestDangles_MissingLink(t *testing.T) {
	assert.False(t, dangles(filepath.Join(t.TempDir(), "link"), true))
}
