package topology_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/topology"
)

// machine makes a topology of nodes, each of which is a socket, with cores of so many threads.
// Threads of one core are numbered apart, as on most machines.
func machine(nodes, coresPerNode, threads int) topology.Topology {
	t := topology.Topology{Memory: map[int]int64{}}
	for id := range nodes * coresPerNode * threads {
		core := id % (nodes * coresPerNode)
		t.CPUs = append(t.CPUs, topology.CPU{ID: id, Core: core % coresPerNode, Socket: core / coresPerNode, Node: core / coresPerNode})
	}
	for node := range nodes {
		t.Memory[node] = 8 << 30
	}
	return t
}

// sockets makes a topology of sockets with so many nodes of four cores.
func sockets(n, nodes int, change ...func(*topology.Topology)) topology.Topology {
	t := topology.Topology{Memory: map[int]int64{}}
	for id := range n * nodes * 4 {
		t.CPUs = append(t.CPUs, topology.CPU{ID: id, Core: id, Socket: id / (nodes * 4), Node: id / 4})
	}
	for _, f := range change {
		f(&t)
	}
	return t
}

// smallNode puts a node of two cores before the others.
func smallNode(t *topology.Topology) {
	for i := range t.CPUs {
		t.CPUs[i].ID, t.CPUs[i].Core, t.CPUs[i].Node = t.CPUs[i].ID+2, t.CPUs[i].Core+2, t.CPUs[i].Node+1
	}
	t.CPUs = append([]topology.CPU{{ID: 0}, {ID: 1, Core: 1}}, t.CPUs...)
}

// oneNode is a machine without NUMA.
func oneNode(t *topology.Topology) {
	for i := range t.CPUs {
		t.CPUs[i].Node = 0
	}
}

// sys writes a topology as /sys has it.
func sys(t topology.Topology) fstest.MapFS {
	root := fstest.MapFS{}
	put := func(name, format string, args ...any) {
		root["sys/devices/system/"+name] = &fstest.MapFile{Data: fmt.Appendf(nil, format+"\n", args...)}
	}
	put("cpu/online", "%s", t.Online())
	for _, c := range t.CPUs {
		put(fmt.Sprintf("cpu/cpu%d/topology/core_id", c.ID), "%d", c.Core)
		put(fmt.Sprintf("cpu/cpu%d/topology/physical_package_id", c.ID), "%d", c.Socket)
	}
	put("node/online", "%s", t.Nodes())
	for _, node := range t.Nodes().IDs() {
		put(fmt.Sprintf("node/node%d/cpulist", node), "%s", t.CPUsOf(topology.NewSet(node)))
		put(fmt.Sprintf("node/node%d/meminfo", node), "Node %d MemFree:  1 kB\nNode %[1]d MemTotal:  %d kB", node, t.Memory[node]>>10)
	}
	return root
}

func TestDetect(t *testing.T) {
	want := machine(2, 4, 2)
	got, err := topology.Detect(sys(want))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, "0-1", got.Nodes().String())
	require.Equal(t, "4-7,12-15", got.CPUsOf(topology.NewSet(1)).String())
	require.Equal(t, "1", got.NodesOf(topology.NewSet(4, 12)).String())
}

func TestDetect_IncompleteMachines(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(fstest.MapFS)
		check  func(t *testing.T, got topology.Topology)
	}{
		"without NUMA all is one node": {
			func(root fstest.MapFS) { removeAll(root, "node/") },
			func(t *testing.T, got topology.Topology) {
				require.Equal(t, "0", got.Nodes().String())
				require.Empty(t, got.Memory)
			},
		},
		"without core ids each CPU is a core": {
			func(root fstest.MapFS) { removeAll(root, "cpu/cpu") },
			func(t *testing.T, got topology.Topology) {
				require.Equal(t, topology.CPU{ID: 3, Core: 3, Node: 1}, got.CPUs[3])
			},
		},
		"ids of -1 are unknown": {
			func(root fstest.MapFS) {
				root["sys/devices/system/cpu/cpu3/topology/physical_package_id"].Data = []byte("-1\n")
			},
			func(t *testing.T, got topology.Topology) { require.Equal(t, 0, got.CPUs[3].Socket) },
		},
		"a node without memory": {
			func(root fstest.MapFS) { delete(root, "sys/devices/system/node/node1/meminfo") },
			func(t *testing.T, got topology.Topology) {
				require.Equal(t, map[int]int64{0: 8 << 30}, got.Memory)
			},
		},
		"an offline CPU": {
			func(root fstest.MapFS) { root["sys/devices/system/cpu/online"].Data = []byte("0-1,3\n") },
			func(t *testing.T, got topology.Topology) { require.Equal(t, "0-1,3", got.Online().String()) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := sys(machine(2, 2, 1))
			tt.change(root)
			got, err := topology.Detect(root)
			require.NoError(t, err)
			tt.check(t, got)
		})
	}
}

func removeAll(root fstest.MapFS, prefix string) {
	for name := range root {
		if strings.HasPrefix(name, "sys/devices/system/"+prefix) {
			delete(root, name)
		}
	}
}

func TestDetect_RejectsInvalidFiles(t *testing.T) {
	for file, text := range map[string]string{
		"cpu/online":                 "zero",
		"cpu/cpu0/topology/core_id":  "first",
		"node/online":                "0-99999",
		"node/node0/cpulist":         "-",
		"cpu/cpu1/topology/core_id ": "",
	} {
		root := sys(machine(1, 2, 1))
		if text == "" {
			delete(root, "sys/devices/system/cpu/online")
		} else {
			root["sys/devices/system/"+file].Data = []byte(text)
		}
		_, err := topology.Detect(root)
		require.Error(t, err, file)
	}
	root := sys(machine(1, 1, 1))
	root["sys/devices/system/cpu/online"].Data = nil
	_, err := topology.Detect(root)
	require.ErrorContains(t, err, "none is online")
	for _, file := range []string{"cpu/online", "cpu/cpu0/topology/core_id", "node/online", "node/node0/cpulist", "node/node0/meminfo"} {
		root := sys(machine(1, 1, 1))
		delete(root, "sys/devices/system/"+file)
		root["sys/devices/system/"+file+"/directory"] = &fstest.MapFile{}
		_, err := topology.Detect(root)
		require.Error(t, err, file)
	}
	root = sys(machine(1, 1, 1))
	delete(root, "sys/devices/system/node/node0/cpulist")
	_, err = topology.Detect(root)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, meminfo := range []string{"Node 0 MemTotal:", "Node 0 MemTotal: 0 kB", "Node 0 MemTotal: 1125899906842624 kB", "Node 0 MemTotal: -5 kB", "Node 0 MemTotal: 9223372036854775807 kB", "Node 0 MemTotal: x kB", "Node 0 MemTotal: 5 MB"} {
		root := sys(machine(1, 1, 1))
		root["sys/devices/system/node/node0/meminfo"].Data = []byte(meminfo)
		got, err := topology.Detect(root)
		require.NoError(t, err)
		require.Empty(t, got.Memory, meminfo)
	}
}

// Cores of different dies or clusters can have the same number: which CPUs are threads of one core, the kernel says.
func TestDetect_CoresWithTheSameNumber(t *testing.T) {
	for name, tt := range map[string]struct {
		numbers, threads []string
		available, want  topology.Set
	}{
		"two dies of two cores of two threads": {
			[]string{"0", "1", "0", "1", "0", "1", "0", "1"},
			[]string{"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"},
			topology.NewSet(0, 1, 2, 3, 5, 6), topology.NewSet(1, 5),
		},
		"three clusters": {
			[]string{"0", "1", "2", "3", "0", "1", "0", "1"},
			[]string{"0", "1", "2", "3", "4", "5", "6", "7"},
			topology.NewSet(4, 5, 6, 7), topology.NewSet(4, 5),
		},
	} {
		root := sys(machine(1, 8, 1))
		for id := range tt.numbers {
			dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", id)
			root[dir+"core_id"].Data = []byte(tt.numbers[id])
			root[dir+"thread_siblings_list"] = &fstest.MapFile{Data: []byte(tt.threads[id] + "\n")}
		}
		got, err := topology.Detect(root)
		require.NoError(t, err, name)
		cpus, ok := got.Pick(tt.available, 2)
		require.True(t, ok, name)
		require.Equal(t, tt.want, cpus, name)
	}
	root := sys(machine(1, 2, 1))
	root["sys/devices/system/cpu/cpu1/topology/thread_siblings_list"] = &fstest.MapFile{Data: []byte("1-0")}
	_, err := topology.Detect(root)
	require.ErrorContains(t, err, "thread_siblings_list")
}

// Memory of huge pages is not memory for anything else.
func TestDetect_HugePages(t *testing.T) {
	root := sys(machine(3, 2, 1))
	put := func(name, text string) { root["sys/"+name] = &fstest.MapFile{Data: []byte(text)} }
	put("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1536")
	put("kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "8")
	put("devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "1024\n")
	put("devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "1\n")
	put("devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "512\n")
	put("devices/system/node/node2/hugepages/hugepages-1048576kB/nr_hugepages", "9\n")
	put("devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "512\n")
	put("devices/system/node/node2/hugepages/hugepages-1048576kB/free_hugepages", "0\n")
	got, err := topology.Detect(root)
	require.NoError(t, err)
	require.Equal(t, map[int]int64{0: 5 << 30, 1: 7 << 30, 2: 0}, got.Memory)
	require.Equal(t, map[int]map[corev1.ResourceName]int64{
		0: {"hugepages-2Mi": 2 << 30, "hugepages-1Gi": 1 << 30}, 1: {"hugepages-2Mi": 1 << 30}, 2: {"hugepages-1Gi": 9 << 30},
	}, got.HugePages)
	require.Equal(t, map[int]map[corev1.ResourceName]int64{
		0: {"hugepages-2Mi": 1 << 30, "hugepages-1Gi": 1 << 30}, 1: {"hugepages-2Mi": 1 << 30}, 2: {"hugepages-1Gi": 0},
	}, got.FreeHugePages)
	put("devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "x")
	_, err = topology.Detect(root)
	require.ErrorContains(t, err, "free_hugepages: invalid number")
	put("devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "many")
	_, err = topology.Detect(root)
	require.ErrorContains(t, err, "invalid number")
}

// The machine of the test has a topology too.
func TestDetect_ThisMachine(t *testing.T) {
	got, err := topology.Detect(osRoot(t))
	require.NoError(t, err)
	require.NotEmpty(t, got.CPUs)
	require.NotZero(t, got.Nodes().Len())
}

// CPUs are near to each other. // CU-5
func TestPick(t *testing.T) {
	for name, tt := range map[string]struct {
		machine   topology.Topology
		available string // "": all
		n         int
		want      string
	}{
		"none":                       {machine(1, 2, 1), "", 0, ""},
		"one":                        {machine(1, 2, 1), "", 1, "0"},
		"a whole core before two":    {machine(1, 4, 2), "", 2, "0,4"},
		"the rest of a split core":   {machine(1, 4, 2), "1-7", 1, "4"},
		"no more cores than needed":  {machine(1, 4, 2), "", 3, "0-1,4"},
		"a split core for the rest":  {machine(1, 4, 2), "1-7", 3, "1,4-5"},
		"within one node":            {machine(2, 4, 2), "2-15", 7, "4-7,12-14"},
		"in the smallest that fits":  {machine(2, 4, 2), "2-15", 6, "2-3,8-11"},
		"the smaller node that fits": {machine(2, 4, 2), "2-15", 4, "2-3,10-11"},
		"a whole node first":         {machine(2, 4, 2), "1-15", 10, "1,4-7,9,12-15"},
		"more than one node":         {machine(2, 2, 1), "", 3, "0-2"},
		"all":                        {machine(2, 2, 2), "", 8, "0-7"},
		"across split nodes":         {machine(2, 4, 1), "1-6", 5, "1-5"},
		"threads of several cores":   {machine(1, 4, 2), "0-3", 2, "0-1"},
		"what does not exist":        {machine(1, 2, 1), "1-5", 1, "1"},
		"whole nodes before threads": {sockets(1, 3), "0-1,4-11", 8, "4-11"},
		"large nodes before small":   {sockets(1, 2, smallNode), "", 9, "0,2-9"},
		"no part of a used node":     {sockets(1, 3), "0-2,4-5,8-11", 6, "4-5,8-11"},
		"the rest from one socket":   {sockets(2, 2), "0-3,7-15", 6, "8-13"},
		"the rest from anywhere":     {sockets(2, 2), "0-6,8-14", 13, "0-6,8-13"},
		"the rest from one node":     {sockets(1, 3), "0-3,6-7,8-10", 7, "0-3,8-10"},
		"a whole socket of a node":   {sockets(2, 1, oneNode), "1-7", 4, "4-7"},
		"within a socket of a node":  {sockets(2, 1, oneNode), "2-7", 3, "4-6"},
		"sockets of a node":          {sockets(3, 1, oneNode), "1-11", 9, "1,4-11"},
		"a node in the other socket": {sockets(2, 2), "0-1,4-5,8-10", 3, "8-10"},
		"few nodes, if none is free": {sockets(1, 3), "0,4-6,8-10", 6, "4-6,8-10"},
		"few sockets of few nodes":   {sockets(3, 2), "0-2,4-6,8-9,12-13,16-18,20-22", 12, "0-2,4-6,16-18,20-22"},
	} {
		t.Run(name, func(t *testing.T) {
			available := tt.machine.Online()
			if tt.available != "" {
				available = set(t, tt.available)
			}
			got, ok := tt.machine.Pick(available, tt.n)
			require.True(t, ok)
			require.Equal(t, tt.want, got.String())
		})
	}
	for _, n := range []int{-1, 3} {
		_, ok := machine(1, 2, 1).Pick(set(t, "0-9"), n)
		require.False(t, ok, n)
	}
}

// Whatever is available, Pick returns as many of it as it is asked for.
func TestPick_ReturnsWhatIsAvailable(t *testing.T) {
	m := machine(2, 2, 2)
	for mask := range 1 << 8 {
		var ids []int
		for id := range 8 {
			if mask&(1<<id) != 0 {
				ids = append(ids, id)
			}
		}
		available := topology.NewSet(ids...)
		for n := range len(ids) + 1 {
			got, ok := m.Pick(available, n)
			require.True(t, ok)
			require.Equal(t, n, got.Len())
			require.True(t, got.IsSubset(available))
		}
	}
}
