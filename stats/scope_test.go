package stats

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/sublet-dev/agent/runtime"
)

// fullMachine has a file for all that a Summary can have.
func fullMachine() (proc, cgroups fstest.MapFS) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	const pressure = "some avg10=1.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=3\n"
	proc = fstest.MapFS{
		"meminfo": file("MemTotal: 1000 kB\nMemFree: 400 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n"),
		"stat":    file("btime 1700000000\n"), "loadavg": file("0 0 0 2/173 9\n"), "sys/kernel/pid_max": file("1000\n"),
		"vmstat":      file("pgpgin 3\npgfault 1234\npgmajfault 56\n"),
		"self/cgroup": file("0::/system.slice/agent.service\n"),
		"1/net/dev":   file("eth0: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n"),
	}
	cgroups = fstest.MapFS{"cgroup.controllers": file("cpu memory pids"), "cpu.stat": file("usage_usec 5\n")}
	for group, used := range map[string]string{"system.slice/agent.service": "300", "kubepods": "200", "kubepods/a": "100", "kubepods/a/c1": "90"} {
		for name, data := range map[string]string{
			"memory.current": used, "memory.max": "1000", "memory.stat": "anon 50\ninactive_file 10\npgfault 8\npgmajfault 2\n",
			"cpu.stat": "usage_usec " + used + "\n", "pids.current": "3", "memory.swap.current": "10", "memory.swap.max": "25",
			"memory.pressure": pressure, "io.pressure": pressure, "cpu.pressure": pressure,
		} {
			cgroups[group+"/"+name] = file(data)
		}
	}
	for _, name := range []string{"memory", "io", "cpu"} {
		proc["pressure/"+name] = file(pressure)
	}
	return proc, cgroups
}

// fullProvider measures a pod on a fullMachine.
func fullProvider(t *testing.T) *Provider {
	t.Helper()
	pod := podOf(t, "a")
	pod.Cgroup = "/kubepods/a"
	pod.Pod.Status.StartTime = &metav1.Time{Time: time.Unix(1_700_000_100, 0)}
	pod.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *pod.Pod.Status.StartTime}}},
	}
	limit := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1000")}
	pod.Pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: limit}}}
	proc, cgroups := fullMachine()
	now := time.Now()
	p, err := New(Config{
		Proc: proc, Cgroups: cgroups, NodeFS: "/node", Pods: func() []Pod { return []Pod{pod} }, PodsCgroup: func() string { return "/kubepods" },
		ContainerStats: containerStats{
			{
				PodUID: "a", ID: "c1", Name: "c", Running: true, CPU: runtime.CPUUsage{At: now, UsageCoreNanoSeconds: 90_000},
				Memory: runtime.MemoryUsage{At: now, Usage: 90, WorkingSet: 80, Capacity: 1000}, Rootfs: runtime.DiskUsage{At: now, Bytes: 7},
			},
			{PodUID: "a", ID: "c0", Name: "c", Rootfs: runtime.DiskUsage{At: now, Bytes: 5}},
		},
		Statfs: func(path string) (runtime.FSUsage, error) {
			return runtime.FSUsage{At: now, Mountpoint: path, CapacityBytes: 100, AvailableBytes: 60, UsedBytes: 40, Inodes: 10, InodesUsed: 4}, nil
		},
	})
	require.NoError(t, err)
	return p
}

// podsOf returns the pods that p measures.
func podsOf(p *Provider) (pods []*corev1.Pod) {
	for _, pod := range p.cfg.Pods() {
		pods = append(pods, pod.Pod)
	}
	return pods
}

// decode reads a Summary as clients do.
func decode(t *testing.T, s Summary) (out statsapi.Summary) {
	t.Helper()
	data, err := json.Marshal(s)
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&out), string(data))
	back, err := json.Marshal(out)
	require.NoError(t, err)
	require.JSONEq(t, string(data), string(back))
	return out
}

// A Summary has the form of the kubelet's, and all that clients of one use.
func TestProvider_SummaryForClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fullProvider(t)
		_, err := p.Summary(t.Context(), "edge-1", podsOf(p))
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		measured, err := p.Summary(t.Context(), "edge-1", podsOf(p))
		require.NoError(t, err)
		s := decode(t, measured)
		n := s.Node
		for name, missing := range map[string]bool{
			"node":       n.CPU == nil || n.Memory == nil || n.Swap == nil || n.IO == nil || n.Network == nil || n.Fs == nil || n.Rlimit == nil || n.StartTime.IsZero(),
			"rate":       n.CPU.UsageNanoCores == nil,
			"runtime":    n.Runtime == nil || n.Runtime.ImageFs == nil || n.Runtime.ContainerFs == nil,
			"containers": len(n.SystemContainers) != 2,
		} {
			require.False(t, missing, name)
		}
		assert.Equal(t, []uint64{600 << 10, 1234, 56}, []uint64{*n.Memory.WorkingSetBytes, *n.Memory.PageFaults, *n.Memory.MajorPageFaults})
		assert.Equal(t, []int64{1000, 173}, []int64{*n.Rlimit.MaxPID, *n.Rlimit.NumOfRunningProcesses})
		assert.Equal(t, []uint64{40 << 10, 60 << 10}, []uint64{*n.Swap.SwapUsageBytes, *n.Swap.SwapAvailableBytes})

		require.Len(t, s.Pods, 1)
		pod := s.Pods[0]
		assert.Equal(t, int64(1_700_000_100), pod.StartTime.Unix())
		assert.Equal(t, uint64(3), *pod.ProcessStats.ProcessCount)
		assert.NotNil(t, pod.CPU.UsageNanoCores)
		assert.Equal(t, []uint64{90, 910}, []uint64{*pod.Memory.WorkingSetBytes, *pod.Memory.AvailableBytes})
		assert.Equal(t, uint64(15), *pod.Swap.SwapAvailableBytes)
		require.NotNil(t, pod.IO.PSI)
		assert.NotEmpty(t, pod.VolumeStats)
		require.NotNil(t, pod.EphemeralStorage)
		assert.GreaterOrEqual(t, *pod.EphemeralStorage.UsedBytes, uint64(130_012), "with the layers of exited containers and their logs")

		require.Len(t, pod.Containers, 1, "those that run")
		c := pod.Containers[0]
		assert.Equal(t, "c", c.Name)
		assert.Equal(t, int64(1_700_000_100), c.StartTime.Unix())
		assert.Equal(t, []uint64{80, 920}, []uint64{*c.Memory.WorkingSetBytes, *c.Memory.AvailableBytes})
		assert.Equal(t, uint64(7), *c.Rootfs.UsedBytes)
		assert.Equal(t, uint64(10), *c.Swap.SwapUsageBytes)
		require.NotNil(t, c.IO.PSI)
	})
}

// CPUAndMemoryStats has these only: it neither counts files nor measures disks.
func TestProvider_CPUAndMemoryStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fullProvider(t)
		all, err := p.Summary(t.Context(), "edge-1", podsOf(p))
		require.NoError(t, err)
		p.asked = time.Time{}
		p.cfg.Statfs = func(path string) (runtime.FSUsage, error) { t.Error("measured", path); return runtime.FSUsage{}, nil }
		p.cfg.ImageFS = noImageFS{t}
		s, err := p.CPUAndMemoryStats(t.Context(), "edge-1", podsOf(p))
		require.NoError(t, err)
		assert.True(t, p.asked.IsZero(), "no count of files")

		n := &all.Node // what is left of it
		n.IO, n.Network, n.FS, n.Runtime, n.Rlimit = nil, nil, nil, nil, nil
		for i := range n.SystemContainers {
			n.SystemContainers[i].IO = nil
		}
		pod := &all.Pods[0]
		pod.IO, pod.VolumeStats, pod.EphemeralStorage, pod.ProcessStats = nil, nil, nil, nil
		pod.Containers[0].IO, pod.Containers[0].Rootfs, pod.Containers[0].Logs = nil, nil, nil
		require.NotNil(t, pod.CPU.PSI)
		assert.Equal(t, decode(t, all), decode(t, s))

		time.Sleep(2 * time.Second)
		s, err = p.CPUAndMemoryStats(t.Context(), "edge-1", podsOf(p))
		require.NoError(t, err)
		for _, cpu := range []*CPUStats{s.Node.CPU, s.Node.SystemContainers[0].CPU, s.Node.SystemContainers[1].CPU, s.Pods[0].CPU} {
			assert.NotNil(t, cpu.UsageNanoCores)
		}

		p.cfg.ContainerStats = containerStats(nil)
		s, err = p.CPUAndMemoryStats(t.Context(), "edge-1", podsOf(p))
		require.NoError(t, err)
		require.EqualError(t, s.Incomplete, "container stats: runtime is down")
		assert.NotNil(t, s.Pods[0].Memory)

		p.proc = newReader(fstest.MapFS{})
		_, err = p.CPUAndMemoryStats(t.Context(), "edge-1", nil)
		require.ErrorContains(t, err, "measure node: ")
	})
}

// noImageFS must not be asked.
type noImageFS struct{ t *testing.T }

func (n noImageFS) ImageFS(context.Context) (images, containers []runtime.FSUsage, err error) {
	n.t.Error("asked for image file systems")
	return nil, nil, nil
}
