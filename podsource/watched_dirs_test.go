package podsource

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A busy neighbour of the manifests costs nothing.
func TestWatchedDirs(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	in := func(parts ...string) string { return filepath.Join(append([]string{root}, parts...)...) }
	require.NoError(t, os.MkdirAll(in("real", "m"), 0o700))
	require.NoError(t, os.MkdirAll(in("far"), 0o700))
	require.NoError(t, os.Symlink("real", in("link")))
	require.NoError(t, os.Symlink("../../far/x", in("real", "m", "x.yaml")))
	require.NoError(t, os.Symlink("nowhere", in("real", "m", "gone.json")))
	require.NoError(t, os.Symlink("../../far/log", in("real", "m", "log")))
	p := findDirs(in("link", "m"))
	for path, want := range map[string]bool{
		in("link"): true, in("other"): false, in("real"): true,
		in("real", "m"): true, in("real", "n"): false,
		in("real", "m", "a.yaml"): true, in("real", "m", "x.yaml"): true, in("real", "m", ".a.yaml.swp"): false,
		in("real", "m", "agent.log"): false, in("real", "m", "nowhere"): true,
		in("far", "x"): true, in("far", "y.yaml"): false, in("far", "log"): false,
	} {
		assert.Equal(t, want, p.isRelevant(path), path)
	}
	p = findDirs(in("not", "yet", "there"))
	assert.True(t, p.isRelevant(in("not")))
	assert.False(t, p.isRelevant(in("nor")))
	require.NoError(t, os.Symlink("loop", in("loop")))
	assert.True(t, findDirs(in("loop", "m")).isRelevant(in("loop")))
}
