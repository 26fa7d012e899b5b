package containergc

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A link that vanishes while it is checked is not counted as dangling.
func TestDangles_MissingLink(t *testing.T) {
	assert.False(t, dangles(filepath.Join(t.TempDir(), "link"), true))
}
