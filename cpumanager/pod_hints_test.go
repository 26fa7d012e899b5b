package cpumanager_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/topology"
)

func sets(ids ...[]int) (hints []topology.Hint) {
	for i, nodes := range ids {
		hints = append(hints, topology.Hint{Nodes: topology.NewSet(nodes...), Preferred: i == 0 || len(nodes) == len(ids[0])})
	}
	return hints
}

// The hints for a pod are those for all its containers together. // 0 is reserved of 0-3 and 4-7.
func TestManager_PodHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(2, 4), stateFile(t))
		require.Nil(t, m.PodHints(pod("early", container("c", "1"))), "it is not known which CPUs are in use")
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		require.Nil(t, m.PodHints(shares("s")))
		require.Equal(t, [][]topology.Hint{sets([]int{0}, []int{1}, []int{0, 1})}, m.PodHints(pod("p", container("a", "2"), container("b", "1"))))

		p := pod("p", container("a", "2"), container("b", "2"))
		require.Equal(t, [][]topology.Hint{sets([]int{1}, []int{0, 1})}, m.PodHints(p), "node 0 has three")
		p.Spec.InitContainers = []corev1.Container{container("init", "4")}
		require.Equal(t, [][]topology.Hint{sets([]int{1}, []int{0, 1})}, m.PodHints(p), "the init container has ended then")
		p.Spec.InitContainers[0] = container("init", "5")
		require.Equal(t, [][]topology.Hint{sets([]int{0, 1})}, m.PodHints(p))
		require.Equal(t, [][]topology.Hint{{}}, m.PodHints(pod("large", container("c", "8"))))
		p.Spec.InitContainers = nil

		small := pod("small", container("a", "1"), container("b", "1"))
		require.NoError(t, m.Reserve(small, &small.Spec.Containers[0], topology.NewSet(1)))
		require.Equal(t, [][]topology.Hint{sets([]int{1}, []int{0, 1})}, m.PodHints(small), "where the first container is")
		require.NoError(t, m.Release(t.Context(), small.UID))
		require.NoError(t, m.Reserve(p, &p.Spec.Containers[0], topology.NewSet(1)))
		require.NoError(t, m.Reserve(p, &p.Spec.Containers[1], topology.NewSet(1)))
		require.Equal(t, [][]topology.Hint{sets([]int{1})}, m.PodHints(p), "what it has")
		require.Equal(t, [][]topology.Hint{sets([]int{0}, []int{0, 1})}, m.PodHints(pod("q", container("c", "3"))))
		require.Equal(t, [][]topology.Hint{{}}, m.PodHints(pod("q", container("c", "4"))))

		// A container of it that gets more: the pod stays where the others are, if it can.
		p.Spec.Containers[0] = container("a", "3")
		require.Equal(t, [][]topology.Hint{sets([]int{0, 1})}, m.PodHints(p))
	})
}

// The memory of a pod is that of its containers with CPUs of their own, beside that of other pods.
func TestManager_PodHintsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(2, 6), stateFile(t), withMemory)
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		p := pod("p", sized("a", "1", "5Gi"), sized("b", "1", "4Gi"))
		require.Equal(t, sets([]int{0, 1}), m.PodHints(p)[1], "more than one node has")
		p.Spec.Containers[1] = sized("b", "1500m", "4Gi")
		require.Equal(t, sets([]int{0}, []int{1}, []int{0, 1}), m.PodHints(p)[1], "what shares CPUs is not confined")
		huge := sized("b", "1", "4Gi")
		huge.Resources.Limits["hugepages-2Mi"] = resource.MustParse("2Mi")
		huge.Resources.Requests["hugepages-2Mi"] = resource.MustParse("2Mi")
		require.Empty(t, m.PodHints(pod("p", p.Spec.Containers[0], huge))[1], "no node has huge pages")
		other := pod("q", sized("c", "1", "6Gi"))
		require.Empty(t, admitPod(t, m, other))
		require.Equal(t, sets([]int{1}, []int{0, 1}), m.PodHints(p)[1])
	})
}

// A pod whose containers fit into one node each, but not together, is admitted by containers alone.
func TestManager_ScopeOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(2, 4), stateFile(t))
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		apart := pod("p", container("a", "3"), container("b", "3"))
		require.Equal(t, topology.ReasonAffinity, admitPod(t, m, apart))
		together := pod("q", container("a", "1"), container("b", "3"))
		together.Spec.InitContainers = []corev1.Container{container("init", "4")}
		require.Empty(t, admitPod(t, m, together))
		for i := range together.Spec.Containers {
			inject, err := m.Inject(t.Context(), together, &together.Spec.Containers[i], false)
			require.NoError(t, err)
			cpus, err := topology.ParseSet(inject.Cpuset.CPUs)
			require.NoError(t, err)
			require.True(t, cpus.IsSubset(topology.NewSet(4, 5, 6, 7)), "%s", cpus)
		}
		require.Empty(t, admitPod(t, m, together), "it has all of it")
	})
}

// admitPod admits a pod to one NUMA node, and returns the reason of its rejection.
func admitPod(t *testing.T, m *cpumanager.Manager, p *corev1.Pod) string {
	t.Helper()
	admitter, err := topology.New(topology.Config{Policy: topology.SingleNUMANode, Scope: topology.PodScope, Nodes: topology.NewSet(0, 1), Providers: []topology.Provider{m}})
	require.NoError(t, err)
	return admitter.Admit(p, nil).Reason
}
