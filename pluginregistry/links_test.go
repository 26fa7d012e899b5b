package pluginregistry

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The directory can be a link, and so can sockets, as for a kubelet. One that leads nowhere, or to something else, is none.
func TestSockets_FollowsLinks(t *testing.T) {
	dir, err := os.MkdirTemp("", "reg") //nolint:usetesting // its name is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	in := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	require.NoError(t, os.MkdirAll(in("real", "below"), 0o700))
	for _, path := range []string{in("real", "a.sock"), in("b.sock")} {
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
	}
	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	for link, to := range map[string]string{"r": "real", "real/b.sock": in("b.sock"), "real/below/c.sock": "../a.sock", "real/gone.sock": "nowhere", "real/file.sock": in("file"), "real/.d.sock": "a.sock"} {
		require.NoError(t, os.Symlink(to, in(link)))
	}
	r, err := New(Config{Dir: in("r"), Handlers: map[string]Handler{"CSIPlugin": nil}})
	require.NoError(t, err)
	found, err := r.sockets()
	require.NoError(t, err)
	require.Equal(t, []string{in("r", "a.sock"), in("r", "b.sock"), in("r", "below", "c.sock")}, slices.Sorted(maps.Keys(found)))
	require.Equal(t, found[in("r", "a.sock")], found[in("r", "below", "c.sock")], "it is the same socket")
	require.Empty(t, r.unread)
}
