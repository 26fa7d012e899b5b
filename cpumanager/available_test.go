package cpumanager_test

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// sized requests CPUs and memory.
func sized(name, cpus, memory string) corev1.Container {
	c := container(name, cpus)
	c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse(memory)
	return c
}

func withMemory(cfg *cpumanager.Config) { cfg.MemoryAffinity = true }

// admit returns the reason for which a pod is rejected.
func admit(t *testing.T, m *cpumanager.Manager, policy topology.Policy, nodes int, p *corev1.Pod, others ...*corev1.Pod) string {
	t.Helper()
	cfg := topology.Config{Policy: policy, Nodes: topology.NewSet(0, nodes-1), Providers: []topology.Provider{m}}
	admitter, err := topology.New(cfg)
	require.NoError(t, err)
	return admitter.Admit(p, others).Reason
}

// cpuset returns where a container runs after it is injected.
func cpuset(t *testing.T, m *cpumanager.Manager, p *corev1.Pod, c *corev1.Container, running bool) runtime.Cpuset {
	t.Helper()
	i, err := m.Inject(t.Context(), p, c, running)
	require.NoError(t, err)
	return i.Cpuset
}

// The memory of init containers is used again by those that run after them, and a pod needs only
// as much as its containers use at the same time.
func TestManager_InitContainersLendMemory(t *testing.T) {
	for _, policy := range []topology.Policy{topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file, machine := stateFile(t), newMachine(1, 6)
				m := newManager(t, machine, file, withMemory)
				stop := start(t, m, new(fakeRuntime))
				synctest.Wait()
				sidecar := sized("sidecar", "1", "1Gi")
				sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
				p := pod("p", sized("main", "1", "2Gi"), sized("more", "1", "2Gi"))
				p.Spec.InitContainers = []corev1.Container{sized("first", "1", "5Gi"), sidecar, sized("last", "1", "5Gi")}
				require.Empty(t, admit(t, m, policy, 1, p))
				for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
					for i := range list {
						require.Equal(t, "0", cpuset(t, m, p, &list[i], false).MemoryNodes, list[i].Name)
					}
				}
				stop()

				// 6 of 8 GiB are in use while the last init container runs beside the sidecar.
				m = newManager(t, machine, file, withMemory)
				large, fits := pod("q", sized("c", "1", "2049Mi")), pod("q", sized("c", "1", "2Gi"))
				require.Empty(t, m.Hints(large, &large.Spec.Containers[0])[1])
				require.NotEmpty(t, m.Hints(fits, &fits.Spec.Containers[0])[1])
			})
		})
	}
}

// A container takes over the CPUs that init containers lend, also where other NUMA nodes have free ones.
func TestManager_HintsForLentCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(2, 4), stateFile(t))
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		p := pod("p", container("main", "1"))
		p.Spec.InitContainers = []corev1.Container{container("init", "4")}
		want := [][]topology.Hint{{{Nodes: topology.NewSet(1), Preferred: true}, {Nodes: topology.NewSet(0, 1)}}}
		require.Equal(t, want, m.Hints(p, &p.Spec.InitContainers[0]))
		require.NoError(t, m.Reserve(p, &p.Spec.InitContainers[0], topology.NewSet(1)))
		require.Equal(t, want, m.Hints(p, &p.Spec.Containers[0]), "not node 0, which has free ones")
	})
}

// A sidecar runs beside the containers after it, and so its memory is not used again.
func TestManager_SidecarsKeepMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(1, 4), stateFile(t), withMemory)
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		sidecar := sized("sidecar", "1", "5Gi")
		sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		p := pod("p", sized("main", "1", "5Gi"))
		p.Spec.InitContainers = []corev1.Container{sized("init", "1", "5Gi"), sidecar}
		require.Equal(t, topology.ReasonAffinity, admit(t, m, topology.Restricted, 1, p))
		require.Equal(t, "0", cpuset(t, m, p, &p.Spec.InitContainers[0], false).MemoryNodes)
		require.Equal(t, "0", cpuset(t, m, p, &p.Spec.InitContainers[1], false).MemoryNodes, "that of the init container")
		require.Empty(t, cpuset(t, m, p, &p.Spec.Containers[0], false).MemoryNodes)
	})
}

// A container that is resized may use what it has itself, and stays in its NUMA nodes if it can.
func TestManager_ResizesWithOwnResources(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes, cpus   int // of the machine: nodes of so many CPUs
		before, after corev1.Container
		want          string // CPUs@memory nodes
		hints         int
		policies      []topology.Policy
	}{
		"its CPUs":        {1, 8, container("c", "4"), container("c", "6"), "1-6@0", 1, []topology.Policy{topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode}},
		"its memory":      {1, 8, sized("c", "2", "5Gi"), sized("c", "3", "5Gi"), "1-3@0", 1, []topology.Policy{topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode}},
		"its nodes":       {2, 4, container("c", "2"), container("c", "3"), "1-3@0", 1, []topology.Policy{topology.BestEffort, topology.Restricted, topology.SingleNUMANode}},
		"too few CPUs":    {2, 4, container("c", "2"), container("c", "4"), "4-7@1", 2, []topology.Policy{topology.BestEffort, topology.Restricted, topology.SingleNUMANode}},
		"too much memory": {2, 4, container("c", "2"), sized("c", "3", "9Gi"), "1-3@", 2, []topology.Policy{topology.None}},
	} {
		for _, policy := range tt.policies {
			t.Run(name+"/"+string(policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newManager(t, newMachine(tt.nodes, tt.cpus), stateFile(t), withMemory)
					start(t, m, new(fakeRuntime))
					synctest.Wait()
					require.Equal(t, "0", cpuset(t, m, pod("p", tt.before), &tt.before, false).MemoryNodes)
					p := pod("p", tt.after)
					require.Len(t, m.Hints(p, &tt.after), tt.hints)
					require.Empty(t, admit(t, m, policy, tt.nodes, p))
					set := cpuset(t, m, p, &tt.after, true)
					require.Equal(t, tt.want, set.CPUs+"@"+set.MemoryNodes)
				})
			})
		}
	}
}

// What a container has while it is being resized is not free yet.
func TestManager_KeepsMemoryUntilResized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(1, 8), stateFile(t), withMemory)
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		before, after, other := sized("c", "2", "5Gi"), sized("c", "1", "1Gi"), sized("c", "1", "5Gi")
		require.Equal(t, "0", cpuset(t, m, pod("p", before), &before, false).MemoryNodes)
		require.NoError(t, m.Reserve(pod("p", after), &after, topology.NewSet(0)))
		require.Empty(t, m.Hints(pod("q", other), &other)[1])
		cpuset(t, m, pod("p", after), &after, true)
		require.NotEmpty(t, m.Hints(pod("q", other), &other)[1])
	})
}

// The memory of a container that is resized is promised to no other, also if it keeps its CPUs.
func TestInject_AccountsForResizedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, rt := stateFile(t), new(fakeRuntime)
		m := newManager(t, newMachine(1, 6), file, withMemory)
		start(t, m, rt)
		synctest.Wait()
		saved := func(want string) {
			t.Helper()
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.JSONEq(t, `{"version":1,"pods":{"p":{"c":`+want+`}}}`, string(text))
		}
		c, larger, other := sized("c", "2", "1Gi"), sized("c", "2", "7Gi"), sized("c", "1", "6Gi")
		require.Equal(t, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}, cpuset(t, m, pod("p", c), &c, false))
		require.NotEmpty(t, m.Hints(pod("q", other), &other)[1])
		require.Equal(t, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}, cpuset(t, m, pod("p", larger), &larger, true))
		saved(`{"cpus":"1-2","memoryNodes":"0","memory":7516192768}`)
		q := pod("q", other)
		require.Empty(t, m.Hints(q, &other)[1])
		require.Empty(t, cpuset(t, m, q, &other, false).MemoryNodes)
		require.NoError(t, m.Release(t.Context(), q.UID))

		require.Equal(t, "0", cpuset(t, m, pod("p", c), &c, true).MemoryNodes, "smaller again")
		saved(`{"cpus":"1-2","memoryNodes":"0","memory":1073741824}`)
		require.Equal(t, "0", cpuset(t, m, q, &other, false).MemoryNodes)
		require.Equal(t, runtime.Cpuset{CPUs: "1-2"}, cpuset(t, m, pod("p", larger), &larger, true), "it does not fit any more")
	})
}

// An admitter decides about more memory, which is set aside then.
func TestManager_AdmitsResizedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var assigned []types.UID
		m := newManager(t, newMachine(1, 6), stateFile(t), withMemory, func(cfg *cpumanager.Config) {
			cfg.Hooks.Assigned = func(uid types.UID, _ string, _ topology.Set) { assigned = append(assigned, uid) }
		})
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		c, other := sized("c", "2", "1Gi"), sized("c", "1", "3Gi")
		require.Equal(t, "0", cpuset(t, m, pod("p", c), &c, false).MemoryNodes)
		require.Equal(t, "0", cpuset(t, m, pod("q", other), &other, false).MemoryNodes)
		others := []*corev1.Pod{pod("p", c), pod("q", other)}
		require.Equal(t, topology.ReasonAffinity, admit(t, m, topology.Restricted, 1, pod("p", sized("c", "2", "6Gi")), others...))
		require.Empty(t, admit(t, m, topology.Restricted, 1, pod("p", c), others...), "what it has")
		larger, third := sized("c", "2", "5Gi"), pod("r", sized("c", "1", "1Gi"))
		require.Empty(t, admit(t, m, topology.Restricted, 1, pod("p", larger), others...))
		require.Equal(t, topology.ReasonAffinity, admit(t, m, topology.Restricted, 1, third, others...))
		require.Equal(t, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}, cpuset(t, m, pod("p", larger), &larger, true))
		require.Equal(t, topology.ReasonAffinity, admit(t, m, topology.Restricted, 1, third, others...))
		require.Equal(t, []types.UID{"p", "q"}, assigned, "it keeps its CPUs")
	})
}

// A container whose resize is taken back keeps its memory, also if the resize would not have fit.
func TestManager_ForgetsResizedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(1, 6), stateFile(t), withMemory)
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		c, larger := sized("c", "2", "1Gi"), sized("c", "2", "9Gi")
		p := pod("p", c)
		require.Equal(t, "0", cpuset(t, m, p, &c, false).MemoryNodes)
		for _, withdraw := range []bool{false, true} {
			require.NoError(t, m.Reserve(pod("p", larger), &larger, topology.NewSet(0)))
			if withdraw {
				require.NoError(t, m.Reserve(p, &c, topology.NewSet(0)))
			}
			require.Equal(t, "0", cpuset(t, m, p, &c, true).MemoryNodes)
		}
	})
}

// A container that needs more CPUs than the preferred NUMA nodes have gets all of theirs, and the
// others from the other nodes.
func TestReserve_UsesPreferredNodesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(2, 4), stateFile(t))
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		c, other, huge := container("c", "4"), container("c", "2"), container("c", "6")
		require.ErrorIs(t, m.Reserve(pod("huge", container("c", "8")), new(container("c", "8")), topology.NewSet(0)), cpumanager.ErrNotEnough)
		for name, tt := range map[string]struct {
			container corev1.Container
			nodes     topology.Set
			want      string
		}{
			"too few":      {c, topology.NewSet(0), "1-4"},
			"enough":       {other, topology.NewSet(0), "1-2"},
			"on two":       {huge, topology.NewSet(1), "1-2,4-7"},
			"none of them": {other, topology.NewSet(2), "1-2"},
		} {
			p := pod("p", tt.container)
			require.NoError(t, m.Reserve(p, &tt.container, tt.nodes), name)
			require.Equal(t, tt.want, inject(t, m, p), name)
			require.NoError(t, m.Release(t.Context(), p.UID))
		}
	})
}

// NUMA nodes that have CPUs but no memory are none that the memory of a container can be in.
func TestManager_NodesWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine := newMachine(2, 4)
		delete(machine.t.Memory, 1)
		m := newManager(t, machine, stateFile(t), withMemory)
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		c := sized("c", "5", "6Gi")
		require.Equal(t, runtime.Cpuset{CPUs: "1,4-7", MemoryNodes: "0"}, cpuset(t, m, pod("p", c), &c, false))
		require.NoError(t, m.Release(t.Context(), "p"))
		c = sized("c", "4", "3Gi")
		require.Equal(t, runtime.Cpuset{CPUs: "4-7"}, cpuset(t, m, pod("q", c), &c, false), "its memory is wherever there is some")
	})
}

// A machine that has fewer NUMA nodes than before can start the containers that were confined to them.
func TestManager_MissingMemoryNodes(t *testing.T) {
	for affinity, want := range map[bool]string{true: "0", false: ""} {
		synctest.Test(t, func(t *testing.T) {
			file := stateFile(t)
			require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"p":{"c":{"cpus":"5-6","memoryNodes":"1","memory":1073741824}}}}`), 0o600))
			m := newManager(t, newMachine(1, 8), file, func(cfg *cpumanager.Config) { cfg.MemoryAffinity = affinity })
			rt, p := new(fakeRuntime), pod("p", container("c", "2"))
			rt.run(p, "5-6")
			rt.pods[0].Containers[0].Resources.Cpuset.MemoryNodes = "0-1"
			start(t, m, rt)
			synctest.Wait()
			for _, move := range rt.taken() {
				require.NotContains(t, move, "@1", "the kernel rejects a node that is not there")
			}
			require.Equal(t, [][]topology.Hint{{{Nodes: topology.NewSet(0), Preferred: true}}}, m.Hints(p, &p.Spec.Containers[0]))
			i, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
			require.NoError(t, err)
			require.Equal(t, runtime.Cpuset{CPUs: "5-6", MemoryNodes: want}, i.Cpuset)
			if nodes, _ := m.Memory("p", "c"); affinity {
				require.Equal(t, topology.NewSet(0), nodes)
			} else {
				require.Zero(t, nodes.Len())
			}
		})
	}
}

// A container that needs more CPUs than init containers before it had has theirs and others, so that the pod has no more than it was
// scheduled with, and the next pod has its own. // CU-5
func TestAdmit_TakesCPUsOfSmallInitContainers(t *testing.T) {
	machine := newSMT(1, 1, 4)
	m := newManager(t, machine, restoredFile(t), func(cfg *cpumanager.Config) { cfg.Reserved = topology.NewSet(0, 4) })
	admit := newAdmitter(t, machine, topology.None, topology.ContainerScope, m)
	other, first, second := pod("0", container("c", "1")), pod("1", container("c", "4")), pod("2", container("c", "1"))
	first.Spec.InitContainers = []corev1.Container{container("i", "1")}
	require.True(t, admit.Admit(other, nil).Admitted)
	require.True(t, admit.Admit(first, []*corev1.Pod{other}).Admitted)
	_, err := m.Inject(t.Context(), first, &first.Spec.InitContainers[0], false)
	require.NoError(t, err)
	inject(t, m, first)
	require.True(t, m.CPUs("1", "i").IsSubset(m.CPUs("1", "c")), "%s of %s", m.CPUs("1", "i"), m.CPUs("1", "c"))
	require.True(t, admit.Admit(second, []*corev1.Pod{other, first}).Admitted, "the machine has 6 CPUs, which it requests with the others")
}
