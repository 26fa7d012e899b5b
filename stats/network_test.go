package stats

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

const netDevHead = "Inter-|   Receive                                                |  Transmit\n" +
	" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"

// netDevLine is the line of an interface with rx bytes received, and others transmitted.
func netDevLine(name string, rx int) string {
	return fmt.Sprintf("%6s: %7d 2 3 4 0 0 0 0 %d 6 7 8 0 0 0 0\n", name, rx, rx+1)
}

// interfaceOf is what netDevLine has.
func interfaceOf(name string, rx uint64) runtime.InterfaceUsage {
	return runtime.InterfaceUsage{Name: name, RxBytes: rx, RxPackets: 2, RxErrors: 3, RxDropped: 4, TxBytes: rx + 1, TxPackets: 6, TxErrors: 7, TxDropped: 8}
}

func TestParseNetDev(t *testing.T) {
	const most, largest = 1<<64 - 1, "18446744073709551615"
	for name, tc := range map[string]struct {
		data  string
		limit int
		want  []runtime.InterfaceUsage
	}{
		"nothing":        {"", 9, nil},
		"the headings":   {netDevHead, 9, nil},
		"in their order": {netDevHead + netDevLine("eth1", 10) + netDevLine("eth0", 20), 9, []runtime.InterfaceUsage{interfaceOf("eth1", 10), interfaceOf("eth0", 20)}},
		"those that cAdvisor leaves out": {
			netDevLine("lo", 1) + netDevLine("veth12", 1) + netDevLine("docker0", 1) + netDevLine("nerdctl0", 1) + netDevLine("LORA", 1) + netDevLine("cni0", 1), 9,
			[]runtime.InterfaceUsage{interfaceOf("cni0", 1)},
		},
		"no space after the colon": {"eth0:1 2 3 4 0 0 0 0 2 6 7 8 0 0 0 0\n", 9, []runtime.InterfaceUsage{interfaceOf("eth0", 1)}},
		"the largest number": {
			"eth0: " + strings.Repeat(largest+" ", 16) + "\n", 9,
			[]runtime.InterfaceUsage{{
				Name: "eth0", RxBytes: most, RxPackets: most, RxErrors: most, RxDropped: most, TxBytes: most, TxPackets: most, TxErrors: most, TxDropped: most,
			}},
		},
		"a last line that is cut off":       {netDevLine("eth0", 1) + "eth1: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0", 9, []runtime.InterfaceUsage{interfaceOf("eth0", 1)}},
		"a name twice, as of one renamed":   {netDevLine("eth0", 1) + netDevLine("eth0", 5), 9, []runtime.InterfaceUsage{interfaceOf("eth0", 1)}},
		"names that are not text":           {netDevLine("\xff", 1) + netDevLine("a\x01", 1) + netDevLine("a\u202e", 1) + netDevLine("", 1), 9, nil},
		"names of any other characters":     {netDevLine(`"}\é`, 1), 9, []runtime.InterfaceUsage{interfaceOf(`"}\é`, 1)}},
		"no more than the limit":            {netDevLine("a", 1) + netDevLine("b", 1) + netDevLine("c", 1), 2, []runtime.InterfaceUsage{interfaceOf("a", 1), interfaceOf("b", 1)}},
		"the default one beyond the limit":  {netDevLine("a", 1) + netDevLine("b", 1) + netDevLine("eth0", 7), 2, []runtime.InterfaceUsage{interfaceOf("a", 1), interfaceOf("eth0", 7)}},
		"counters of one that is left out":  {"lo: x\n" + netDevLine("eth0", 1), 9, []runtime.InterfaceUsage{interfaceOf("eth0", 1)}},
		"a name with a colon, of old tools": {netDevLine("eth0:1", 1), 9, []runtime.InterfaceUsage{interfaceOf("eth0:1", 1)}},
	} {
		got, err := parseNetDev([]byte(tc.data), tc.limit)
		require.NoError(t, err, name)
		assert.Equal(t, tc.want, got, name)
	}
	for data, want := range map[string]string{
		"eth0: 1 2 3\n": `interface "eth0" does not have 16 counters`,
		"eth0: " + strings.Repeat("1 ", 17) + "\n":   `interface "eth0" does not have 16 counters`,
		"eth0: " + strings.Repeat("x ", 16) + "\n":   `interface "eth0": `,
		"eth0: -1" + strings.Repeat(" 1", 15) + "\n": `interface "eth0": `,
	} {
		_, err := parseNetDev([]byte(data), 9)
		assert.ErrorContains(t, err, want, data)
	}
}

// Whatever the file contains, the interfaces are bounded and can be reported.
func FuzzParseNetDev(f *testing.F) {
	f.Add([]byte(netDevHead + netDevLine("lo", 1) + netDevLine("eth0", 2) + netDevLine("eth1", 3)))
	f.Add([]byte(netDevLine("\xff\"", 1) + netDevLine("a", 1) + netDevLine("a", 2)))
	f.Add([]byte(":\n: 1\neth0:"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 3
		list, err := parseNetDev(data, limit)
		if err != nil {
			require.Empty(t, list)
			return
		}
		require.LessOrEqual(t, len(list), limit)
		names := map[string]bool{}
		for _, i := range list {
			require.False(t, names[i.Name], "twice: %q", i.Name)
			names[i.Name] = true
			require.NotEmpty(t, i.Name)
			require.True(t, utf8.ValidString(i.Name))
		}
		u := &runtime.NodeUsage{Network: runtime.NetworkUsage{At: time.Now(), Interfaces: list}}
		encoded, err := json.Marshal(Summarize("n", time.Time{}, u, nil))
		require.NoError(t, err)
		var back Summary
		require.NoError(t, json.Unmarshal(encoded, &back))
		require.Len(t, back.Node.Network.Interfaces, len(list))
		for i := range list {
			require.Equal(t, list[i].Name, back.Node.Network.Interfaces[i].Name)
		}
	})
}

// link is a symbolic link in a MapFS.
func link(target string) *fstest.MapFile {
	return &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte(target)}
}

// process adds a process to a /proc.
func process(proc fstest.MapFS, pid, namespace, netDev, cgroup string) {
	proc[pid+"/ns/net"] = link("net:[" + namespace + "]")
	proc[pid+"/net/dev"] = &fstest.MapFile{Data: []byte(netDev)}
	proc[pid+"/cgroup"] = &fstest.MapFile{Data: []byte(cgroup)}
}

// The network of the node is that of the first process, or that of the agent if it is hidden.
func TestProvider_NodeNetwork(t *testing.T) {
	proc := testProc()
	process(proc, "self", "1", netDevHead+netDevLine("eth5", 5), "")
	node := func() *NetworkStats {
		p, err := New(Config{Proc: proc, Cgroups: fstest.MapFS{}})
		require.NoError(t, err)
		s, err := p.Summary(t.Context(), "n", nil)
		require.NoError(t, err)
		return s.Node.Network
	}
	require.Len(t, node().Interfaces, 1)
	assert.Equal(t, "eth5", node().Interfaces[0].Name)
	assert.Empty(t, node().Name, "there is no default interface")

	process(proc, "1", "1", netDevHead+netDevLine("eth1", 1)+netDevLine("eth0", 10)+netDevLine("veth", 1), "")
	n := node()
	require.Len(t, n.Interfaces, 2)
	assert.Equal(t, "eth0", n.Name)
	assert.Equal(t, n.Interfaces[1], n.InterfaceStats)
	encoded, err := json.Marshal(n.InterfaceStats)
	require.NoError(t, err)
	assert.JSONEq(t, `{"name":"eth0","rxBytes":10,"rxErrors":3,"txBytes":11,"txErrors":7}`, string(encoded))
	assert.Equal(t, []uint64{2, 4, 6, 8}, []uint64{*n.RxPackets, *n.RxDropped, *n.TxPackets, *n.TxDropped})

	process(proc, "1", "1", netDevHead+netDevLine("lo", 1), "")
	assert.Nil(t, node(), "no interface counts")
	process(proc, "1", "1", "eth0: x\n", "")
	process(proc, "self", "1", "eth0: x\n", "")
	assert.Nil(t, node())
}

// podNode is a node with pods in the network namespaces of their processes.
type podNode struct {
	proc, cgroups fstest.MapFS
	v2            bool
	pods          []Pod
	containers    containerStats
	p             *Provider
}

func newPodNode(t *testing.T, v2 bool) *podNode {
	n := &podNode{proc: testProc(), cgroups: fstest.MapFS{}, v2: v2, containers: containerStats{}}
	if v2 {
		n.cgroups["cgroup.controllers"] = &fstest.MapFile{}
	}
	process(n.proc, "self", "1", netDevHead, "")
	process(n.proc, "1", "host", netDevHead, "")
	var err error
	n.p, err = New(Config{Proc: n.proc, Cgroups: n.cgroups, Pods: func() []Pod { return n.pods }, ContainerStats: &n.containers})
	require.NoError(t, err)
	return n
}

// group sets the processes in a cgroup of the pod "a".
func (n *podNode) group(name string, pids ...int) {
	dir := "kubepods/poda/" + name
	if !n.v2 {
		dir = "pids/" + dir
	}
	n.cgroups[dir+"/cgroup.procs"] = &fstest.MapFile{Data: []byte(strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", "\n"), "[]") + "\n")}
}

// process adds a process of the pod "a" in a network namespace, which has rx bytes received.
func (n *podNode) process(pid int, namespace string, rx int) {
	at := "0::/../kubepods/poda/x\n"
	if !n.v2 {
		at = "5:memory:/\n4:cpu,pids:/kubepods/poda/x\n"
	}
	process(n.proc, fmt.Sprint(pid), namespace, netDevHead+netDevLine("eth0", rx), at)
}

// received returns the bytes that the pod "a" has received, or -1 if it has no network.
func (n *podNode) received(t *testing.T) int {
	t.Helper()
	if n.pods == nil {
		n.pods = []Pod{{Pod: &corev1.Pod{}, Cgroup: "/kubepods/poda"}}
		n.pods[0].Pod.UID = "a"
	}
	s, err := n.p.Summary(t.Context(), "n", nil)
	require.NoError(t, err)
	if s.Pods[0].Network == nil {
		return -1
	}
	return int(*s.Pods[0].Network.RxBytes)
}

// The network of a pod is that of one of its processes, of the sandbox if there is one.
func TestProvider_PodNetwork(t *testing.T) {
	for name, v2 := range map[string]bool{"v1": false, "v2": true} {
		t.Run(name, func(t *testing.T) {
			n := newPodNode(t, v2)
			assert.Equal(t, -1, n.received(t), "it has no cgroup")
			n.group("abc", 7)
			n.process(7, "7", 70)
			assert.Equal(t, 70, n.received(t))
			assert.Empty(t, n.p.networkPIDs, "it may not be a process of the sandbox")
			n.containers = containerStats{{PodUID: "a", ID: "main", Name: "main", Running: true}}
			assert.Equal(t, 70, n.received(t))
			assert.Len(t, n.p.networkPIDs, 1)
			n.process(7, "7", 75)
			assert.Equal(t, 75, n.received(t))

			// The process has ended, and its id is that of a process of another pod.
			process(n.proc, "7", "9", netDevHead+netDevLine("eth0", 90), "0::/kubepods/podb/x\n")
			n.group("abc", 8)
			n.process(8, "7", 80)
			assert.Equal(t, 80, n.received(t))
			n.group("abc", 7)
			delete(n.proc, "8/net/dev")
			assert.Equal(t, -1, n.received(t), "the list of processes is older")
			assert.Empty(t, n.p.networkPIDs)

			n.containers = containerStats{{PodUID: "a", ID: "abc", Name: "main", Running: true}}
			n.group("abc", 10)
			n.group("cri-containerd-zzz.scope", 11)
			n.process(10, "own", 100)
			n.process(11, "7", 110)
			assert.Equal(t, 110, n.received(t), "the sandbox, as not every container is in its namespace")

			n.pods[0].Pod.Spec.HostNetwork = true
			assert.Equal(t, -1, n.received(t))
			n.pods[0].Pod.Spec.HostNetwork = false
			assert.Equal(t, 110, n.received(t))
			n.pods[0].Cgroup = ""
			assert.Equal(t, -1, n.received(t))
			n.pods = []Pod{}
			_, err := n.p.Summary(t.Context(), "n", nil)
			require.NoError(t, err)
			assert.Empty(t, n.p.networkPIDs, "the pod was removed")
		})
	}
}

// Helpers of the runtime in the cgroup of a pod are on the network of the host, and processes
// of other PID namespaces have no number.
func TestProvider_PodNetworkOfOtherProcesses(t *testing.T) {
	n := newPodNode(t, true)
	n.group("crio-conmon-abc.scope", 20)
	n.process(20, "1", 200)
	n.group("shim", 0, 0, 21, 22)
	n.process(21, "host", 210)
	assert.Equal(t, -1, n.received(t))
	n.process(22, "pod", 220)
	assert.Equal(t, 220, n.received(t))

	delete(n.proc, "22/ns/net")
	assert.Equal(t, -1, n.received(t), "the namespace is unknown")
	n.process(22, "pod", 220)
	delete(n.proc, "22/cgroup")
	assert.Equal(t, -1, n.received(t), "it is not known to be of the pod")
	n.process(22, "pod", 220)
	delete(n.proc, "self/ns/net")
	delete(n.proc, "1/ns/net")
	assert.Equal(t, -1, n.received(t), "that of the host is unknown")
}

// A container can create thousands of interfaces and processes. What is read and reported of
// them is bounded.
func TestProvider_HostilePodNetwork(t *testing.T) {
	n := newPodNode(t, true)
	var lines strings.Builder
	lines.WriteString(netDevHead + netDevLine("eth0", 70))
	for i := range 20_000 {
		lines.WriteString(netDevLine(fmt.Sprint("\xffx", i), 1) + netDevLine(fmt.Sprint("eth0x", i), 1))
	}
	pids := make([]int, 50_000)
	for i := range pids {
		pids[i] = 7 + i
	}
	n.group("abc", pids...)
	n.process(7, "7", 0)
	n.proc["7/net/dev"] = &fstest.MapFile{Data: []byte(lines.String())}
	assert.Equal(t, 70, n.received(t))
	s, err := n.p.Summary(t.Context(), "n", nil)
	require.NoError(t, err)
	assert.Len(t, s.Pods[0].Network.Interfaces, maxPodInterfaces)
	delete(n.proc, "7/ns/net")
	assert.Equal(t, -1, n.received(t))
}

// Eviction measures neither networks nor swap.
func TestUsage_WithoutDetails(t *testing.T) {
	n := newPodNode(t, true)
	n.proc["meminfo"] = &fstest.MapFile{Data: []byte("MemTotal: 10 kB\nSwapTotal: 5 kB\nSwapFree: 1 kB\n")}
	n.group("abc", 7)
	n.process(7, "7", 70)
	process(n.proc, "1", "1", netDevLine("eth0", 1), "")
	assert.Equal(t, 70, n.received(t))
	u, err := n.p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.Equal(t, runtime.NetworkUsage{}, u.Network)
	assert.Equal(t, runtime.SwapUsage{}, u.Swap)
	assert.Equal(t, runtime.NetworkUsage{}, u.Pods[0].Network)
	assert.Equal(t, types.UID("a"), u.Pods[0].UID)
}
