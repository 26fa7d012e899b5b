package cpumanager_test

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

const huge2Mi, huge1Gi corev1.ResourceName = "hugepages-2Mi", "hugepages-1Gi"

// withHugePages gives each node of a machine so many bytes of huge pages.
func withHugePages(m *machine, each map[corev1.ResourceName]int64) *machine {
	m.t.HugePages = map[int]map[corev1.ResourceName]int64{}
	for node := range m.t.Memory {
		m.t.HugePages[node] = each
	}
	return m
}

// reserving keeps memory of NUMA nodes: memory and huge pages by node.
func reserving(nodes map[int]corev1.ResourceList) func(*cpumanager.Config) {
	return func(cfg *cpumanager.Config) { cfg.MemoryAffinity, cfg.ReservedMemory = true, nodes }
}

// list is a list of resources: name, quantity, …
func list(parts ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(parts); i += 2 {
		out[corev1.ResourceName(parts[i])] = resource.MustParse(parts[i+1])
	}
	return out
}

// withPages returns a container that requests huge pages too.
func withPages(c corev1.Container, parts ...string) corev1.Container {
	resources := corev1.ResourceRequirements{Requests: c.Resources.Requests.DeepCopy(), Limits: c.Resources.Limits.DeepCopy()}
	for name, q := range list(parts...) {
		resources.Requests[name], resources.Limits[name] = q, q
	}
	c.Resources = resources
	return c
}

// What is reserved of a node is given to no container: it gets another node, or is not confined, or its pod is
// rejected, as the policy has it. Nodes have 4 CPUs, of which 0 is reserved, 8Gi of memory, and 4Gi of huge pages.
func TestManager_ReservesMemoryOfNodes(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes    int
		reserved map[int]corev1.ResourceList
		c        corev1.Container
		want     string // CPUs@memory nodes, or the reason of a rejection
		policy   topology.Policy
	}{
		"nothing reserved":                    {2, nil, sized("c", "2", "8Gi"), "1-2@0", topology.SingleNUMANode},
		"on the first node":                   {2, map[int]corev1.ResourceList{0: list("memory", "1Gi")}, sized("c", "2", "8Gi"), "4-5@1", topology.SingleNUMANode},
		"as much as is left":                  {2, map[int]corev1.ResourceList{0: list("memory", "1Gi")}, sized("c", "2", "7Gi"), "1-2@0", topology.SingleNUMANode},
		"on both nodes":                       {2, map[int]corev1.ResourceList{0: list("memory", "1Gi"), 1: list("memory", "1Ki")}, sized("c", "2", "8Gi"), topology.ReasonAffinity, topology.SingleNUMANode},
		"on both nodes, of which both are":    {2, map[int]corev1.ResourceList{0: list("memory", "1Gi"), 1: list("memory", "1Gi")}, sized("c", "2", "8Gi"), topology.ReasonAffinity, topology.Restricted},
		"of three nodes":                      {3, map[int]corev1.ResourceList{0: list("memory", "8Gi"), 2: list("memory", "1Gi")}, sized("c", "2", "7Gi"), "4-5@1", topology.BestEffort},
		"without a policy":                    {2, map[int]corev1.ResourceList{0: list("memory", "1Gi")}, sized("c", "2", "8Gi"), "1-2@", topology.None},
		"huge pages with nothing reserved":    {2, nil, withPages(sized("c", "2", "1Gi"), "hugepages-2Mi", "4Gi"), "1-2@0", topology.SingleNUMANode},
		"huge pages on the first node":        {2, map[int]corev1.ResourceList{0: list("hugepages-2Mi", "2Mi")}, withPages(sized("c", "2", "1Gi"), "hugepages-2Mi", "4Gi"), "4-5@1", topology.SingleNUMANode},
		"huge pages of another size":          {2, map[int]corev1.ResourceList{0: list("hugepages-1Gi", "2Gi")}, withPages(sized("c", "2", "1Gi"), "hugepages-2Mi", "4Gi"), "1-2@0", topology.SingleNUMANode},
		"memory of one, huge pages of other":  {2, map[int]corev1.ResourceList{0: list("hugepages-2Mi", "2Gi"), 1: list("memory", "6Gi")}, withPages(sized("c", "2", "4Gi"), "hugepages-2Mi", "4Gi"), topology.ReasonAffinity, topology.SingleNUMANode},
		"the same, and memory is not so near": {2, map[int]corev1.ResourceList{0: list("hugepages-2Mi", "2Gi"), 1: list("memory", "6Gi")}, withPages(sized("c", "2", "4Gi"), "hugepages-2Mi", "4Gi"), "1-2@", topology.BestEffort},
		"more huge pages than there are":      {2, nil, withPages(sized("c", "2", "1Gi"), "hugepages-1Gi", "5Gi"), "1-2@", topology.None},
	} {
		for _, scope := range []topology.Scope{topology.ContainerScope, topology.PodScope} {
			t.Run(name+"/"+string(scope), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					machine := withHugePages(newMachine(tt.nodes, 4), map[corev1.ResourceName]int64{huge2Mi: 4 << 30, huge1Gi: 4 << 30})
					m := newManager(t, machine, stateFile(t), reserving(tt.reserved))
					start(t, m, new(fakeRuntime))
					synctest.Wait()
					admitter, err := topology.New(topology.Config{Policy: tt.policy, Scope: scope, Nodes: machine.t.Nodes(), Providers: []topology.Provider{m}})
					require.NoError(t, err)
					p := pod("p", tt.c)
					if r := admitter.Admit(p, nil); !r.Admitted {
						require.Equal(t, tt.want, r.Reason)
						return
					}
					set := cpuset(t, m, p, &tt.c, false)
					require.Equal(t, tt.want, set.CPUs+"@"+set.MemoryNodes)
				})
			})
		}
	}
}

// Containers of several pods do not get the huge pages of one node twice, and they are free again with their pod.
func TestManager_SharesOutHugePages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, withHugePages(newMachine(2, 4), map[corev1.ResourceName]int64{huge1Gi: 4 << 30}), stateFile(t), reserving(map[int]corev1.ResourceList{0: list("hugepages-1Gi", "1Gi")}))
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		first, second := withPages(container("c", "1"), "hugepages-1Gi", "3Gi"), withPages(container("c", "1"), "hugepages-1Gi", "1Gi")
		require.Equal(t, "0", cpuset(t, m, pod("first", first), &first, false).MemoryNodes)
		require.Equal(t, map[corev1.ResourceName]int64{huge1Gi: 3 << 30}, m.HugePages("first", "c"))
		require.Len(t, m.Hints(pod("second", second), &second), 2, "of its CPUs, and of its memory with huge pages")
		require.Equal(t, sets([]int{1}, []int{0, 1}), m.Hints(pod("second", second), &second)[1])
		require.Empty(t, cpuset(t, m, pod("second", second), &second, false).MemoryNodes, "its CPUs are of node 0")
		require.Empty(t, m.HugePages("second", "c"))
		require.NoError(t, m.Release(t.Context(), "first"))
		require.Equal(t, "0", cpuset(t, m, pod("third", second), &second, false).MemoryNodes)
	})
}

func TestManager_ReportsMemoryWithoutReserved(t *testing.T) {
	machine := withHugePages(newMachine(2, 4), map[corev1.ResourceName]int64{huge2Mi: 1 << 30, huge1Gi: 4 << 30})
	m := newManager(t, machine, stateFile(t), reserving(map[int]corev1.ResourceList{0: list("memory", "1Gi", "hugepages-1Gi", "4Gi")}))
	require.Equal(t, map[int]int64{0: 7 << 30, 1: 8 << 30}, m.AllocatableMemory())
	require.Equal(t, map[int]map[corev1.ResourceName]int64{0: {huge2Mi: 1 << 30, huge1Gi: 0}, 1: {huge2Mi: 1 << 30, huge1Gi: 4 << 30}}, m.AllocatableHugePages())
	require.Nil(t, newManager(t, newMachine(1, 2), stateFile(t)).AllocatableHugePages())
}

// A container keeps its node when an agent starts that reserves more of it, also when it is started again, and when
// its CPUs or memory become fewer. Others get less.
func TestManager_KeepsMemoryWhenMoreIsReserved(t *testing.T) {
	file := stateFile(t)
	c := withPages(sized("c", "2", "6Gi"), "hugepages-2Mi", "2Gi")
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, withHugePages(newMachine(1, 8), map[corev1.ResourceName]int64{huge2Mi: 2 << 30}), file, withMemory)
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		require.Equal(t, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}, cpuset(t, m, pod("p", c), &c, false))
	})
	stored, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(stored), `"memory":6442450944,"hugePages":{"hugepages-2Mi":2147483648}`)
	for name, change := range map[string]struct {
		c       corev1.Container
		running bool
		want    runtime.Cpuset
	}{
		"running":         {c, true, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}},
		"started again":   {c, false, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}},
		"with less of it": {withPages(sized("c", "2", "5Gi"), "hugepages-2Mi", "2Gi"), true, runtime.Cpuset{CPUs: "1-2", MemoryNodes: "0"}},
		"with more CPUs":  {withPages(sized("c", "3", "6Gi"), "hugepages-2Mi", "2Gi"), true, runtime.Cpuset{CPUs: "1-3", MemoryNodes: "0"}},
		"with more of it": {withPages(sized("c", "2", "7Gi"), "hugepages-2Mi", "2Gi"), true, runtime.Cpuset{CPUs: "1-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.NoError(t, os.WriteFile(file, stored, 0o600))
				m := newManager(t, withHugePages(newMachine(1, 8), map[corev1.ResourceName]int64{huge2Mi: 2 << 30}), file, reserving(map[int]corev1.ResourceList{0: list("memory", "4Gi", "hugepages-2Mi", "1Gi")}))
				start(t, m, new(fakeRuntime))
				synctest.Wait()
				p := pod("p", change.c)
				if change.want.MemoryNodes != "" {
					require.Equal(t, [][]topology.Hint{{{Nodes: topology.NewSet(0), Preferred: true}}}, m.Hints(p, &change.c))
				}
				require.Equal(t, change.want, cpuset(t, m, p, &change.c, change.running))
				if change.want.MemoryNodes != "" {
					other := container("c", "1")
					require.Empty(t, cpuset(t, m, pod("q", other), &other, false).MemoryNodes)
				}
			})
		})
	}
}

// Huge pages that are not in the state are set aside where the container is confined already, or it may use all nodes.
func TestInject_AccountsForHugePages(t *testing.T) {
	for pages, want := range map[string]string{"2Gi": "0", "3Gi": ""} {
		for _, running := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				file := stateFile(t)
				require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"p":{"c":{"cpus":"1-2","memoryNodes":"0","memory":1073741824}}}}`), 0o600))
				m := newManager(t, withHugePages(newMachine(2, 4), map[corev1.ResourceName]int64{huge1Gi: 2 << 30}), file, withMemory)
				start(t, m, new(fakeRuntime))
				synctest.Wait()
				c := withPages(container("c", "2"), "hugepages-1Gi", pages)
				require.Equal(t, runtime.Cpuset{CPUs: "1-2", MemoryNodes: want}, cpuset(t, m, pod("p", c), &c, running))
				require.Equal(t, want != "", m.HugePages("p", "c") != nil)
			})
		}
	}
}

func TestNew_ChecksReservedMemory(t *testing.T) {
	for want, reserved := range map[string]map[int]corev1.ResourceList{
		"NUMA node 2 does not exist; this machine has 0-1":                         {2: list("memory", "1Gi")},
		"NUMA node -1 does not exist":                                              {-1: list("memory", "1Gi")},
		"NUMA node 1 has no resource cpu: must be memory, or hugepages-<size>":     {1: list("cpu", "1")},
		"NUMA node 0 cannot keep -1 of memory":                                     {0: list("memory", "-1")},
		"NUMA node 1 has 8Gi of memory, and not the 9Gi that are reserved":         {1: list("memory", "9Gi")},
		"NUMA node 0 has 2Gi of hugepages-1Gi, and not the 3Gi that are reserved":  {0: list("hugepages-1Gi", "3Gi")},
		"NUMA node 0 has 0 of hugepages-64Ki, and not the 64Ki that are reserved":  {0: list("hugepages-64Ki", "64Ki")},
		"NUMA node 1 has 0 of hugepages-1024Mi, and not the 1Gi that are reserved": {1: list("hugepages-1024Mi", "1Gi")},
	} {
		cfg := cpumanager.Config{Topology: withHugePages(newMachine(2, 4), map[corev1.ResourceName]int64{huge1Gi: 2 << 30}).topology, Reserved: topology.NewSet(0), StateFile: stateFile(t), MemoryAffinity: true, ReservedMemory: reserved}
		_, err := cpumanager.New(cfg)
		require.ErrorContains(t, err, "cpumanager: Config.ReservedMemory: "+want)
		cfg.MemoryAffinity = false
		_, err = cpumanager.New(cfg)
		require.ErrorContains(t, err, "cpumanager: Config.ReservedMemory: needs MemoryAffinity")
	}
	withoutNUMA := newMachine(1, 4)
	clear(withoutNUMA.t.Memory)
	newManager(t, withoutNUMA, stateFile(t), reserving(map[int]corev1.ResourceList{0: list("memory", "1Gi")}))
}

// A container does not get nodes whose huge pages others have taken, which are not confined: it may use all. One that
// has its own keeps its nodes.
func TestManager_HugePagesOfOthers(t *testing.T) {
	for name, admitted := range map[string]bool{"admitted": true, "created": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				machine := withHugePages(newMachine(1, 6), map[corev1.ResourceName]int64{huge1Gi: 4 << 30})
				take := func(free int64) {
					machine.mu.Lock()
					defer machine.mu.Unlock()
					machine.t.FreeHugePages = map[int]map[corev1.ResourceName]int64{0: {huge1Gi: free}}
				}
				m := newManager(t, machine, stateFile(t), withMemory)
				start(t, m, new(fakeRuntime))
				synctest.Wait()
				c := withPages(container("c", "1"), "hugepages-1Gi", "2Gi")
				nodes := func(p *corev1.Pod, container *corev1.Container) string {
					if admitted {
						require.NoError(t, m.Reserve(p, container, topology.NewSet(0)))
					}
					return cpuset(t, m, p, container, false).MemoryNodes
				}
				take(2 << 30)
				require.Equal(t, "0", nodes(pod("p", c), &c))
				take(1 << 30)
				require.Empty(t, nodes(pod("q", c), &c))
				other := container("c", "1")
				require.Equal(t, "0", nodes(pod("r", other), &other), "without huge pages")
				require.Equal(t, "0", nodes(pod("p", c), &c), "started again")
				more := withPages(container("c", "2"), "hugepages-1Gi", "2Gi")
				require.Equal(t, runtime.Cpuset{CPUs: "1,4", MemoryNodes: "0"}, cpuset(t, m, pod("p", more), &more, true))
			})
		})
	}
}
