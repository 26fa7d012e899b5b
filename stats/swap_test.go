package stats

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// swap returns what is used and available; -1 is unknown.
func swap(s *SwapStats) (used, available int) {
	used, available = -1, -1
	if s != nil && s.SwapUsageBytes != nil {
		used = int(*s.SwapUsageBytes)
	}
	if s != nil && s.SwapAvailableBytes != nil {
		available = int(*s.SwapAvailableBytes)
	}
	return used, available
}

// The usage of swap space is that of the cgroup. A limit of 0 is one.
func TestProvider_PodSwap(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, tc := range map[string]struct {
		cgroups         fstest.MapFS
		used, available int
	}{
		"v2":                 {fstest.MapFS{"p/memory.swap.current": file("10\n"), "p/memory.swap.max": file("25\n")}, 10, 15},
		"v2, no limit":       {fstest.MapFS{"p/memory.swap.current": file("10\n"), "p/memory.swap.max": file("max\n")}, 10, -1},
		"v2, no swap":        {fstest.MapFS{"p/memory.swap.current": file("0\n"), "p/memory.swap.max": file("0\n")}, 0, 0},
		"v2, lowered limit":  {fstest.MapFS{"p/memory.swap.current": file("10\n"), "p/memory.swap.max": file("5\n")}, 10, 0},
		"v2, not accounted":  {fstest.MapFS{"p/memory.current": file("10\n")}, -1, -1},
		"v1":                 {fstest.MapFS{"memory/p/memory.stat": file("swap 1\ntotal_swap 10\n"), "memory/p/memory.memsw.limit_in_bytes": file("50\n")}, 10, 40},
		"v1, no limit":       {fstest.MapFS{"memory/p/memory.stat": file("total_swap 10\n"), "memory/p/memory.memsw.limit_in_bytes": file("9223372036854771712\n")}, 10, -1},
		"v1, not accounted":  {fstest.MapFS{"memory/p/memory.stat": file("total_rss 10\n")}, -1, -1},
		"v1, without cgroup": {fstest.MapFS{"memory/q/memory.stat": file("total_swap 10\n")}, -1, -1},
	} {
		if name[:2] == "v2" {
			tc.cgroups["cgroup.controllers"] = file("memory")
		}
		p, err := New(Config{Proc: testProc(), Cgroups: tc.cgroups, Pods: func() []Pod { return []Pod{{Pod: &corev1.Pod{}, Cgroup: "/p"}} }})
		require.NoError(t, err)
		s, err := p.Summary(t.Context(), "n", nil)
		require.NoError(t, err)
		used, available := swap(s.Pods[0].Swap)
		assert.Equal(t, []int{tc.used, tc.available}, []int{used, available}, name)
	}
}

// The swap space of the node is that of the machine, or of a cgroup with a lower limit.
func TestProvider_NodeSwap(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	const machine = "MemTotal: 1000 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n"
	cgroups := fstest.MapFS{
		"cgroup.controllers":    file("memory"),
		"a/memory.swap.current": file("7"), "a/memory.swap.max": file("70"), "a/b/memory.swap.current": file("5"), "a/b/memory.swap.max": file("max"),
		"c/memory.swap.current": file("7"), "c/memory.swap.max": file("999999999"),
	}
	for name, tc := range map[string]struct {
		meminfo, group  string
		cgroups         fstest.MapFS
		used, available int
	}{
		"machine":                    {machine, "", cgroups, 40 << 10, 60 << 10},
		"no swap":                    {"MemTotal: 1 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n", "", cgroups, 0, 0},
		"no swap in the kernel":      {"MemTotal: 1 kB\n", "", cgroups, -1, -1},
		"cgroup":                     {machine, "/a", cgroups, 7, 63},
		"cgroup above":               {machine, "/a/b", cgroups, 7, 63},
		"a limit above the machine":  {machine, "/c", cgroups, 40 << 10, 60 << 10},
		"cgroup, no machine":         {"MemTotal: 1 kB\n", "/c", cgroups, 7, 999999992},
		"limits of v1 do not count":  {machine, "/a", fstest.MapFS{"memory/a/memory.stat": file("total_swap 1"), "memory/a/memory.memsw.limit_in_bytes": file("10")}, 40 << 10, 60 << 10},
		"more free than there is":    {"MemTotal: 1 kB\nSwapTotal: 1 kB\nSwapFree: 2 kB\n", "", cgroups, 0, 1 << 10},
		"a machine without any file": {"", "", cgroups, -1, -1},
	} {
		p, err := New(Config{Proc: fstest.MapFS{"meminfo": file(tc.meminfo), "loadavg": file("0 0 0 1/2 3"), "sys/kernel/pid_max": file("5")}, Cgroups: tc.cgroups, NodeCgroup: tc.group})
		require.NoError(t, err)
		s, err := p.Summary(t.Context(), "n", nil)
		require.NoError(t, err)
		used, available := swap(s.Node.Swap)
		assert.Equal(t, []int{tc.used, tc.available}, []int{used, available}, name)
	}
}

// The pressure of pods is in a Summary also while no task on the node waits, as its totals
// are. Containers have what the runtime reports.
func TestProvider_SummaryPressure(t *testing.T) {
	psi := func(total string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("some avg10=1.50 avg60=0.00 avg300=0.00 total=" + total + "\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1\n")}
	}
	of := func(total uint64) runtime.PSIStats {
		return runtime.PSIStats{At: time.Unix(9, 0), Some: runtime.PSIData{Total: total}}
	}
	number := &fstest.MapFile{Data: []byte("1\n")}
	cgroups := fstest.MapFS{
		"cgroup.controllers": {}, "p/memory.current": number, "p/memory.stat": {}, "p/cpu.stat": {Data: []byte("usage_usec 1\n")},
		"p/cpu.pressure": psi("2"), "p/memory.pressure": psi("3"), "p/io.pressure": psi("4"),
	}
	p, err := New(Config{
		Proc: fstest.MapFS{"meminfo": {Data: []byte("MemTotal: 9 kB\n")}}, Cgroups: cgroups,
		Pods: func() []Pod { return []Pod{{Pod: &corev1.Pod{}, Cgroup: "/p"}} },
		ContainerStats: containerStats{
			{
				Name: "a", Running: true, CPU: runtime.CPUUsage{At: time.Unix(9, 0)}, Memory: runtime.MemoryUsage{At: time.Unix(9, 0)},
				CPUPressure: of(5), MemoryPressure: of(6), IOPressure: of(7), Swap: runtime.SwapUsage{At: time.Unix(9, 0), Usage: 8},
			},
			{Name: "b", Running: true, CPU: runtime.CPUUsage{At: time.Unix(9, 0)}},
		},
	})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), "n", nil)
	require.NoError(t, err)
	pod := s.Pods[0]
	require.NotNil(t, pod.IO)
	assert.Equal(t, []uint64{2, 3, 4}, []uint64{pod.CPU.PSI.Some.Total, pod.Memory.PSI.Some.Total, pod.IO.PSI.Some.Total})
	assert.InDelta(t, 0.5, pod.IO.PSI.Full.Avg10, 0)
	c := pod.Containers[0]
	assert.Equal(t, []uint64{5, 6, 7}, []uint64{c.CPU.PSI.Some.Total, c.Memory.PSI.Some.Total, c.IO.PSI.Some.Total})
	assert.Equal(t, uint64(8), *c.Swap.SwapUsageBytes)
	assert.Nil(t, pod.Containers[1].CPU.PSI)
	assert.Nil(t, pod.Containers[1].IO)
	assert.Nil(t, pod.Containers[1].Swap)

	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.True(t, u.Pods[0].MemoryPressure.At.IsZero(), "no task on the node waits")
	delete(cgroups, "p/io.pressure")
	s, err = p.Summary(t.Context(), "n", nil)
	require.NoError(t, err)
	assert.Nil(t, s.Pods[0].IO)
}

// What a runtime does not report of a container is that of its cgroup.
func TestProvider_ContainerDetails(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	at := time.Unix(9, 0)
	reported := runtime.ContainerUsage{
		Name: "c", ID: "id", Running: true, Swap: runtime.SwapUsage{At: at, Usage: 3},
		CPU: runtime.CPUUsage{At: at}, CPUPressure: runtime.PSIStats{At: at, Some: runtime.PSIData{Total: 4}},
	}
	unreported := runtime.ContainerUsage{Name: "c", ID: "id", Running: true, CPU: runtime.CPUUsage{At: at}}
	for name, tc := range map[string]struct {
		pod, dir  string
		container runtime.ContainerUsage
		swap, psi int
	}{
		"cgroupfs":               {"/p", "p/id", unreported, 10, 20},
		"cgroupfs of CRI-O":      {"/p", "p/crio-id", unreported, 10, 20},
		"systemd":                {"/p.slice", "p.slice/cri-containerd-id.scope", unreported, 10, 20},
		"systemd, of CRI-O":      {"/p.slice", "p.slice/crio-id.scope", unreported, 10, 20},
		"of another name":        {"/p", "p/vm-id", unreported, -1, -1},
		"as the runtime reports": {"/p", "p/id", reported, 3, 4},
		"an id with a slash":     {"/p", "p/id", runtime.ContainerUsage{Name: "c", ID: "x/../id", Running: true, CPU: runtime.CPUUsage{At: at}}, -1, -1},
		"no id":                  {"/p", "p", runtime.ContainerUsage{Name: "c", Running: true, CPU: runtime.CPUUsage{At: at}}, -1, -1},
		"the cgroup above":       {"/p/q", "p", runtime.ContainerUsage{Name: "c", ID: "..", Running: true, CPU: runtime.CPUUsage{At: at}}, -1, -1},
	} {
		p, err := New(Config{
			Proc: testProc(), Pods: func() []Pod { return []Pod{{Pod: &corev1.Pod{}, Cgroup: tc.pod}} }, ContainerStats: containerStats{tc.container},
			Cgroups: fstest.MapFS{
				"cgroup.controllers": file("memory"), tc.dir + "/memory.swap.current": file("10"), tc.dir + "/memory.swap.max": file("max"),
				tc.dir + "/cpu.pressure": file("some total=20\n"),
			},
		})
		require.NoError(t, err)
		s, err := p.Summary(t.Context(), "n", nil)
		require.NoError(t, err)
		c := s.Pods[0].Containers[0]
		used, _ := swap(c.Swap)
		psi := -1
		if c.CPU.PSI != nil {
			psi = int(c.CPU.PSI.Some.Total)
		}
		assert.Equal(t, []int{tc.swap, tc.psi}, []int{used, psi}, name)
	}

	// A kernel that does not account for swap has pressure.
	p, err := New(Config{
		Proc: testProc(), Pods: func() []Pod { return []Pod{{Pod: &corev1.Pod{}, Cgroup: "/p"}} }, ContainerStats: containerStats{unreported},
		Cgroups: fstest.MapFS{"cgroup.controllers": file("memory"), "p/id/cpu.pressure": file("some total=20\n")},
	})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), "n", nil)
	require.NoError(t, err)
	assert.Nil(t, s.Pods[0].Containers[0].Swap)
	assert.Equal(t, uint64(20), s.Pods[0].Containers[0].CPU.PSI.Some.Total)
}
