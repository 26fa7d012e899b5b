package devices_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/topology"
)

// The hints for a pod are those for all its containers together.
func TestManager_PodHints(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	p := pod("p", container("a", 1), container("b", 1))
	require.Empty(t, m.PodHints(p), "no plugin has the resource")
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
	require.Empty(t, m.PodHints(p), "its devices do not say where they are")
	list := near("a", "b")
	require.NoError(t, m.Update(gpu, &fake{}, list))
	require.Equal(t, [][]topology.Hint{{hint(true, 0), hint(true, 1), hint(false, 0, 1)}}, m.PodHints(p))
	require.Equal(t, [][]topology.Hint{{hint(true, 0, 1)}}, m.PodHints(pod("q", container("a", 1), container("b", 2))))
	require.Equal(t, [][]topology.Hint{{}}, m.PodHints(pod("q", container("a", 3), container("b", 2))), "too few")
	large := pod("q", container("a", 1))
	large.Spec.InitContainers = []corev1.Container{container("init", 2)}
	require.Equal(t, [][]topology.Hint{{hint(true, 0), hint(true, 1), hint(false, 0, 1)}}, m.PodHints(large))
	list[0].Healthy = false
	require.NoError(t, m.Update(gpu, &fake{}, list))
	require.Equal(t, [][]topology.Hint{{hint(true, 1), hint(false, 0, 1)}}, m.PodHints(p))
	list[0].Healthy = true
	require.NoError(t, m.Update(gpu, &fake{}, list))

	require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(0)))
	require.Equal(t, [][]topology.Hint{{hint(true, 0), hint(false, 0, 1)}}, m.PodHints(p), "where the first container is")
	require.NoError(t, m.Reserve(p, &p.Spec.Containers[1], topology.NewSet(0)))
	require.Equal(t, [][]topology.Hint{{hint(true, 0), hint(false, 0, 1)}}, m.PodHints(p), "what it has")
	require.Equal(t, [][]topology.Hint{{hint(true, 1), hint(false, 0, 1)}}, m.PodHints(pod("q", container("c", 2))))
	without := newManager(t, stateFile(t))
	require.NoError(t, without.Update(gpu, &fake{}, near("a")))
	require.Empty(t, without.PodHints(p))
}

// While it is not known which devices a running pod has, none can be given.
func TestManager_PodHintsAfterALoss(t *testing.T) {
	file := stateFile(t)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	m := newManager(t, file, withNodes)
	require.NoError(t, m.Update(gpu, &fake{}, near("a", "b")))
	running := pod("running", container("c", 1))
	_, err := m.Inject(t.Context(), running, &running.Spec.Containers[0], true)
	require.ErrorIs(t, err, devices.ErrStateLost)
	p := pod("p", container("c", 1))
	require.Equal(t, [][]topology.Hint{{}}, m.PodHints(p))
	require.NoError(t, m.Release(t.Context(), running.UID))
	require.NotEqual(t, [][]topology.Hint{{}}, m.PodHints(p))
}
