package volume

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// PS-6: a volume that is mounted stays as it is while it cannot be updated, also for the next process: the
// containers of its pod may have to be started again.
func TestMount_KeepsContentThatCannotBeUpdated(t *testing.T) {
	const volumes = "  - {name: v, configMap: {name: c}}\n  - {name: w, projected: {sources: [{secret: {name: s}}]}}\n"
	full := func() *store {
		s := &store{}
		s.put(podspec.ConfigMap, "c", map[string]string{"a": "1"})
		s.put(podspec.Secret, "s", map[string]string{"b": "2"})
		return s
	}
	m, p := manager(t, nil), pod(t, "u", volumes)
	want := mount(t, m, p, full())

	partial := &store{}
	partial.put(podspec.Secret, "s", map[string]string{"b": "3"})
	for _, process := range []string{"this process", "the next one"} {
		got, err := m.Mount(t.Context(), p, partial)
		require.ErrorIs(t, err, runtime.ErrNotUpdated, process)
		require.ErrorIs(t, err, podspec.ErrObjectNotFound)
		require.ErrorContains(t, err, `volume "v"`)
		assert.NotContains(t, err.Error(), `volume "w"`)
		assert.Equal(t, want, got)
		assert.Equal(t, map[string]string{"a": "1 0644"}, tree(t, got["v"].HostPath))
		assert.Equal(t, map[string]string{"b": "3 0644"}, tree(t, got["w"].HostPath), "others are updated")
		next, err := New(m.cfg)
		require.NoError(t, err)
		m = next
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := m.Mount(ended, p, partial)
	require.ErrorIs(t, err, context.Canceled)
	assert.Nil(t, got)

	// One of which a volume has no content yet does not start.
	got, err = m.Mount(t.Context(), pod(t, "u", volumes+"  - {name: x, configMap: {name: none}}\n"), partial)
	require.ErrorContains(t, err, `volume "x"`)
	assert.Nil(t, got)
	require.NoError(t, os.Remove(filepath.Join(want["v"].HostPath, dataLink)))
	got, err = m.Mount(t.Context(), p, partial)
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	require.NotErrorIs(t, err, runtime.ErrNotUpdated)
	assert.Nil(t, got)
}
