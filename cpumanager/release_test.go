package cpumanager_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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

// A release that could not be stored is no error, as on a disk that the pod has filled: its CPUs are free, and the next change stores it.
func TestRelease_CannotBeStored(t *testing.T) {
	machine, file := newMachine(1, 4), restoredFile(t)
	m := newManager(t, machine, file)
	one, two := pod("one", container("c", "3")), pod("two", container("c", "2"))
	require.Equal(t, "1-3", inject(t, m, one))
	stored := func() []types.UID {
		uids, err := newManager(t, machine, file).PodUIDs()
		require.NoError(t, err)
		return uids
	}
	dir := filepath.Dir(file)
	require.NoError(t, os.Rename(dir, dir+".away"))
	require.NoError(t, m.Release(t.Context(), one.UID))
	require.NoError(t, m.Release(t.Context(), "another"))
	_, err := m.Inject(t.Context(), two, &two.Spec.Containers[0], false)
	require.ErrorIs(t, err, os.ErrNotExist, "nothing is given that is not stored")
	require.NoError(t, os.Rename(dir+".away", dir))
	require.Equal(t, []types.UID{one.UID}, stored())
	require.Equal(t, "1-2", inject(t, m, two))
	require.Equal(t, []types.UID{two.UID}, stored())
}

// What is stored of a pod that does not exist any more can be released.
func TestManager_PodUIDs(t *testing.T) {
	machine, file := newMachine(1, 6), stateFile(t)
	require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"b":{"c":{"cpus":"3"}},"a":{"c":{"cpus":"1-2"}}}}`), 0o600))
	m := newManager(t, machine, file)
	reserved := pod("reserved", container("c", "2"))
	require.NoError(t, m.Reserve(reserved, &reserved.Spec.Containers[0], topology.NewSet(0)))
	uids, err := m.PodUIDs()
	require.NoError(t, err)
	require.Equal(t, []types.UID{"a", "b"}, uids, "what is only set aside is freed otherwise")
	require.NoError(t, m.Release(t.Context(), "a"))
	uids, err = newManager(t, machine, file).PodUIDs()
	require.NoError(t, err)
	require.Equal(t, []types.UID{"b"}, uids)

	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700)) // cannot be read
	_, err = newManager(t, machine, file).PodUIDs()
	require.ErrorContains(t, err, "cannot be read")
}
