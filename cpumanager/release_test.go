package cpumanager_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// A pod has CPUs from its admission until they are released: before it is reported as ended, as another pod that comes for
// its CPUs then would be rejected.
func TestManager_HasUnreleased(t *testing.T) {
	machine, file := newMachine(1, 4), stateFile(t)
	require.NoError(t, os.WriteFile(file, []byte(`{"version":1}`), 0o600))
	m := newManager(t, machine, file)
	admitter, err := topology.New(topology.Config{Nodes: topology.NewSet(0), Providers: []topology.Provider{m}})
	require.NoError(t, err)
	one, two := pod("one", container("c", "3")), pod("two", container("c", "2"))
	require.False(t, m.HasUnreleased(one))
	require.Equal(t, podspec.Admitted(), admitter.Admit(one, nil))
	require.True(t, m.HasUnreleased(one), "they are set aside")
	require.Equal(t, "1-3", inject(t, m, one))
	require.True(t, m.HasUnreleased(one))
	require.False(t, admitter.Admit(two, []*corev1.Pod{one}).Admitted)
	require.NoError(t, m.Release(t.Context(), one.UID))
	require.False(t, m.HasUnreleased(one))
	require.Equal(t, podspec.Admitted(), admitter.Admit(two, nil))

	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700)) // cannot be read
	require.False(t, newManager(t, machine, file).HasUnreleased(two), "nothing is given to others either")
}
