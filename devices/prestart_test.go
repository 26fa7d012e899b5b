package devices_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/devices"
)

// A container is started again while its plugin is gone, if the plugin prepares nothing.
func TestPreStart_WaitsOnlyForPluginsThatPrepare(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	p := pod("p", container("c", 1))
	plain, preparing := &fake{}, &starter{}
	require.NoError(t, m.Update(gpu, plain, healthy("a")))
	require.Equal(t, "a", inject(t, m, p))
	m.Disconnect(gpu, plain)
	require.NoError(t, m.PreStart(t.Context(), p, "c"))

	require.NoError(t, m.Update(gpu, preparing, healthy("a")))
	m.Disconnect(gpu, preparing)
	require.ErrorIs(t, m.PreStart(t.Context(), p, "c"), devices.ErrNoPlugin, "its successor prepares")
	require.NoError(t, m.Update(gpu, plain, healthy("a")))
	m.Disconnect(gpu, plain)
	require.NoError(t, m.PreStart(t.Context(), p, "c"), "the next one does not")
	require.Empty(t, preparing.started)

	m = newManager(t, file)
	require.Equal(t, "a", inject(t, m, p))
	require.ErrorIs(t, m.PreStart(t.Context(), p, "c"), devices.ErrNoPlugin, "not known after a restart of the agent")
	require.NoError(t, m.Update(gpu, plain, healthy("a")))
	require.NoError(t, m.PreStart(t.Context(), p, "c"))
}
