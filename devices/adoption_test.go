package devices_test

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/devices"
)

// After the state was lost a pod that runs may be synced later than another one requests its device.
func TestInject_WaitsForAdoptionAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := stateFile(t)
		require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
		m := newManager(t, file)
		require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
		running, other := pod("running", container("c", 1)), pod("other", container("c", 1))
		time.Sleep(time.Hour) // until the runtime is ready, for example
		for range 60 {
			_, err := injectInto(t, m, other, false)
			require.ErrorIs(t, err, devices.ErrStateLost)
			time.Sleep(time.Second)
		}
		_, err := injectInto(t, m, running, true)
		require.ErrorIs(t, err, devices.ErrStateLost)
		_, err = injectInto(t, m, other, false)
		require.ErrorContains(t, err, "default/running")
		require.NoError(t, m.Release(t.Context(), running.UID))
		require.Equal(t, "a", inject(t, m, other))
		require.NotEmpty(t, m.Allocations(other.UID))
	})
}
