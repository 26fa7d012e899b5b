package devices_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/topology"
)

// near returns healthy devices of two NUMA nodes: a0, b0, ... and a1, b1, ...
func near(names ...string) []devices.Device {
	var list []devices.Device
	for _, name := range names {
		list = append(list, devices.Device{ID: name + "0", Healthy: true, NUMANodes: []int64{0}}, devices.Device{ID: name + "1", Healthy: true, NUMANodes: []int64{1}})
	}
	return list
}

func withNodes(cfg *devices.Config) { cfg.NUMANodes = topology.NewSet(0, 1) }

func hint(preferred bool, nodes ...int) topology.Hint {
	return topology.Hint{Nodes: topology.NewSet(nodes...), Preferred: preferred}
}

func TestManager_Hints(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	p := pod("p", container("c", 2))
	hints := func() [][]topology.Hint { return m.Hints(p, &p.Spec.Containers[0]) }
	require.Empty(t, hints(), "no plugin has the resource")
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
	require.Empty(t, hints(), "its devices do not say where they are")
	require.NoError(t, m.Update(gpu, &fake{}, []devices.Device{{ID: "a", Healthy: true, NUMANodes: []int64{-1}}, {ID: "b", Healthy: true, NUMANodes: []int64{1 << 40}}}))
	require.Empty(t, hints(), "there are no such nodes")
	list := near("a", "b")
	require.NoError(t, m.Update(gpu, &fake{}, list))
	require.Equal(t, [][]topology.Hint{{hint(true, 0), hint(true, 1), hint(false, 0, 1)}}, hints())
	list[0].Healthy = false
	require.NoError(t, m.Update(gpu, &fake{}, list))
	require.Equal(t, [][]topology.Hint{{hint(true, 1), hint(false, 0, 1)}}, hints())
	large := pod("large", container("c", 4))
	require.Equal(t, [][]topology.Hint{{}}, m.Hints(large, &large.Spec.Containers[0]), "too few")
	require.Equal(t, "a1,b0", inject(t, m, p), "nobody has asked for nodes")
	require.Equal(t, [][]topology.Hint{{hint(true, 0, 1)}}, hints(), "what it has")
	without := newManager(t, stateFile(t))
	require.NoError(t, without.Update(gpu, &fake{}, near("a")))
	require.Empty(t, without.Hints(p, &p.Spec.Containers[0]))
	require.NoError(t, without.Reserve(p, &p.Spec.Containers[0], topology.NewSet(0)))
}

// Hints name nodes with devices only. With others, what is best for a container whose CPUs are elsewhere would be a node
// that has neither.
func TestManager_HintsNameNodesWithDevices(t *testing.T) {
	m := newManager(t, stateFile(t), func(cfg *devices.Config) { cfg.NUMANodes = topology.NewSet(0, 1, 2, 3) })
	require.NoError(t, m.Update(gpu, &fake{}, []devices.Device{{ID: "a", Healthy: true, NUMANodes: []int64{2}}, {ID: "b", Healthy: true, NUMANodes: []int64{3, 9}}}))
	p := pod("p", container("c", 1))
	want := [][]topology.Hint{{hint(true, 2), hint(true, 3), hint(false, 2, 3)}}
	require.Equal(t, want, m.Hints(p, &p.Spec.Containers[0]))
	require.Equal(t, want, m.PodHints(p))
	cpus := []topology.Hint{hint(true, 1), hint(false, 0, 1), hint(false, 1, 2), hint(false, 1, 3)}
	affinity, ok := topology.Merge(topology.BestEffort, topology.NewSet(0, 1, 2, 3), append(m.Hints(p, &p.Spec.Containers[0]), cpus))
	require.True(t, ok)
	require.Equal(t, hint(false, 2), affinity)
}

// Devices that were set aside at admission are those that the container gets, also if the
// plugin fails first.
func TestManager_ReservesDevices(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	plugin := &fake{err: errors.New("busy")}
	require.NoError(t, m.Update(gpu, plugin, near("a", "b")))
	p, other := pod("p", container("c", 2)), pod("other", container("c", 2))
	require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(1)))
	require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(0)), "once")
	require.Equal(t, [][]topology.Hint{{hint(true, 0), hint(false, 0, 1)}}, m.Hints(other, &other.Spec.Containers[0]))
	require.Empty(t, m.Allocations(p.UID))
	_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
	require.ErrorContains(t, err, "busy")
	plugin.err = nil
	require.Equal(t, "a0,b0", inject(t, m, other))
	require.Equal(t, "a1,b1", inject(t, m, p))
	third := pod("third", container("c", 1))
	require.ErrorIs(t, m.Reserve(third, &third.Spec.Containers[0], topology.NewSet(0)), devices.ErrNotEnough)
}

// What was set aside for a pod that never started is free again; what was allocated stays.
func TestManager_KeepReserved(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	require.NoError(t, m.Update(gpu, &fake{}, near("a")))
	started, removed, kept := pod("started", container("c", 1)), pod("removed", container("c", 1)), pod("kept", container("c", 1))
	require.NoError(t, m.Reserve(started, &started.Spec.Containers[0], topology.NewSet(1)))
	require.Equal(t, "a1", inject(t, m, started))
	require.NoError(t, m.Reserve(removed, &removed.Spec.Containers[0], topology.NewSet(1)))
	m.KeepReserved(func(uid types.UID) bool { return uid == removed.UID })
	require.ErrorIs(t, m.Reserve(kept, &kept.Spec.Containers[0], topology.NewSet(0)), devices.ErrNotEnough)
	m.KeepReserved(func(types.UID) bool { return false })
	require.NoError(t, m.Reserve(kept, &kept.Spec.Containers[0], topology.NewSet(0)))
	require.Equal(t, "a0", inject(t, m, kept))
	require.Equal(t, "a1", inject(t, m, started))
}

// A plugin with a preference is asked about the devices of the right nodes only. If these do not
// suffice, the container gets all of them, and what the plugin prefers of the far ones.
func TestManager_ChoosesNearDevices(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	var asked [][]string
	c := &chooser{answer: func(available []string, n int) ([]string, error) {
		asked = append(asked, available)
		return available[len(available)-n:], nil
	}}
	require.NoError(t, m.Update(gpu, c, near("a", "b", "d")))
	p, large := pod("p", container("c", 2)), pod("large", container("c", 3))
	require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(1)))
	require.Equal(t, "b1,d1", inject(t, m, p))
	require.Equal(t, [][]string{{"a1", "b1", "d1"}}, asked)
	require.NoError(t, m.Reserve(large, &large.Spec.Containers[0], topology.NewSet(1)))
	require.Equal(t, "a0,a1,b0", inject(t, m, large))
	require.Equal(t, []string{"a1", "a0", "b0", "d0"}, asked[1], "near ones first")
	require.Equal(t, []string{"a1"}, c.include)
}

// A sidecar near a device lends nothing; an init container that has ended does.
func TestManager_LendsNearDevices(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	require.NoError(t, m.Update(gpu, &fake{}, near("a", "b")))
	p := pod("p", container("main", 1))
	p.Spec.InitContainers = []corev1.Container{container("init", 2)}
	require.NoError(t, m.Reserve(p, &p.Spec.InitContainers[0], topology.NewSet(0)))
	_, err := m.Inject(t.Context(), p, &p.Spec.InitContainers[0], false)
	require.NoError(t, err)
	require.Equal(t, [][]topology.Hint{{hint(true, 0), hint(false, 0, 1)}}, m.Hints(p, &p.Spec.Containers[0]))
	require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(0)))
	require.Equal(t, "a0", inject(t, m, p))
}

// What init containers lend is set aside once for the pod, so that others get the rest while they run.
func TestManager_ReservesLentDevices(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	require.NoError(t, m.Update(gpu, &fake{}, near("a", "b")))
	p, other := pod("p", container("main", 2)), pod("other", container("c", 2))
	p.Spec.InitContainers = []corev1.Container{container("first", 2), container("second", 2)}
	both := topology.NewSet(0, 1)
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			require.NoError(t, m.Reserve(p, &list[i], both))
		}
	}
	require.Equal(t, [][]topology.Hint{{hint(false, 0, 1)}}, m.Hints(other, &other.Spec.Containers[0]))
	require.NoError(t, m.Reserve(other, &other.Spec.Containers[0], both))
	require.Equal(t, "b0,b1", inject(t, m, other))
	for i := range p.Spec.InitContainers {
		injection, err := m.Inject(t.Context(), p, &p.Spec.InitContainers[i], false)
		require.NoError(t, err)
		require.Equal(t, "a0,a1", injection.Env["GPUS"])
	}
	require.Equal(t, "a0,a1", inject(t, m, p))
}

// A container takes over what init containers lend, also where other NUMA nodes have free devices.
func TestManager_HintsForLentDevices(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	require.NoError(t, m.Update(gpu, &fake{}, slices.Delete(near("a", "b"), 2, 3))) // a0, a1 and b1
	p := pod("p", container("main", 1))
	p.Spec.InitContainers = []corev1.Container{container("init", 2)}
	require.Equal(t, [][]topology.Hint{{hint(true, 1), hint(false, 0, 1)}}, m.Hints(p, &p.Spec.InitContainers[0]))
	require.NoError(t, m.Reserve(p, &p.Spec.InitContainers[0], topology.NewSet(1)))
	require.Equal(t, [][]topology.Hint{{hint(true, 1), hint(false, 0, 1)}}, m.Hints(p, &p.Spec.Containers[0]))
	require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(1)))
	other := pod("other", container("c", 1))
	require.NoError(t, m.Reserve(other, &other.Spec.Containers[0], topology.NewSet(0)))
	require.Equal(t, "a0", inject(t, m, other))
}

// CPUs and devices come from the same NUMA node, or the pod is rejected.
func TestManager_CombinesWithOthers(t *testing.T) {
	m := newManager(t, stateFile(t), withNodes)
	require.NoError(t, m.Update(gpu, &fake{}, near("a")))
	cpus := fixedHints{{hint(true, 1), hint(false, 0, 1)}}
	admitter, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Nodes: topology.NewSet(0, 1), Providers: []topology.Provider{m, cpus}})
	require.NoError(t, err)
	first, second := pod("first", container("c", 1)), pod("second", container("c", 1))
	require.True(t, admitter.Admit(first, nil).Admitted)
	require.Equal(t, topology.ReasonAffinity, admitter.Admit(second, []*corev1.Pod{first}).Reason, "the device that is left is far from the CPUs")
	require.Equal(t, "a1", inject(t, m, first))
}

// fixedHints are those of another provider.
type fixedHints [][]topology.Hint

func (f fixedHints) Hints(*corev1.Pod, *corev1.Container) [][]topology.Hint   { return f }
func (fixedHints) Reserve(*corev1.Pod, *corev1.Container, topology.Set) error { return nil }
func (fixedHints) KeepReserved(func(types.UID) bool)                          {}
