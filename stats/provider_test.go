package stats_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/clocktest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

func files(m map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, data := range m {
		out[name] = &fstest.MapFile{Data: []byte(data)}
	}
	return out
}

func proc() fstest.MapFS {
	return files(map[string]string{
		"meminfo":                "MemTotal:       1000 kB\nMemFree:         400 kB\nInactive(file):  100 kB\nAnonPages:       300 kB\n",
		"loadavg":                "0.10 0.20 0.30 2/173 6697\n",
		"sys/kernel/pid_max":     "32768\n",
		"sys/kernel/threads-max": "1000\n",
		"pressure/memory":        "some avg10=1.50 avg60=2.00 avg300=0.10 total=12345\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=99\n",
	})
}

func pod(uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: "p", Namespace: "ns"}}
}

func noFS(string) (runtime.FSUsage, error) { return runtime.FSUsage{}, errors.New("no such disk") }

func TestMachine(t *testing.T) {
	p, err := stats.New(stats.Config{Proc: proc(), Cgroups: files(nil)})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.Equal(t, uint64(1000<<10), u.Memory.Capacity)
	assert.Equal(t, uint64(600<<10), u.Memory.Usage)
	assert.Equal(t, uint64(500<<10), u.Memory.WorkingSet)
	assert.Equal(t, uint64(500<<10), u.Memory.Available())
	assert.Equal(t, uint64(1000), u.Pids.Max)
	assert.Equal(t, uint64(173), u.Pids.Used)
	assert.Equal(t, runtime.PSIData{Avg10: 1.5, Avg60: 2, Avg300: 0.1, Total: 12345}, u.MemoryPressure.Some)
	assert.InDelta(t, 0.5, u.MemoryPressure.Full.Avg10, 0)
	assert.True(t, u.IOPressure.At.IsZero(), "not there, so not known")
}

func TestGroups(t *testing.T) {
	v1 := files(map[string]string{
		"memory/node/memory.usage_in_bytes":            "1000\n",
		"memory/node/memory.limit_in_bytes":            "4096\n",
		"memory/node/memory.stat":                      "inactive_file 1\ntotal_inactive_file 200\ntotal_rss 700\ntotal_pgfault 7\ntotal_pgmajfault 3\n",
		"pids/node/pids.current":                       "12\n",
		"pids/node/pids.max":                           "100\n",
		"cpuacct/node/cpuacct.usage":                   "5000\n",
		"memory/node/kubepods/p/memory.usage_in_bytes": "300\n",
		"memory/node/kubepods/p/memory.limit_in_bytes": "9223372036854771712\n",
		"memory/node/kubepods/p/memory.stat":           "total_inactive_file 400\n",
		"pids/node/kubepods/p/pids.current":            "3\n",
		"pids/node/kubepods/p/pids.max":                "max\n",
		"cpuacct/node/kubepods/p/cpuacct.usage":        "77\n",
	})
	v2 := files(map[string]string{
		"cgroup.controllers":             "cpu memory pids\n",
		"node/memory.current":            "1000\n",
		"node/memory.max":                "4096\n",
		"node/memory.stat":               "anon 700\nfile 9\ninactive_file 200\npgfault 7\npgmajfault 3\n",
		"node/pids.current":              "12\n",
		"node/pids.max":                  "100\n",
		"node/cpu.stat":                  "usage_usec 5\nuser_usec 1\n",
		"node/memory.pressure":           "some avg10=9.00 avg60=0.00 avg300=0.00 total=1\n",
		"node/kubepods/p/memory.current": "300\n",
		"node/kubepods/p/memory.max":     "max\n",
		"node/kubepods/p/memory.stat":    "inactive_file 400\n",
		"node/kubepods/p/pids.current":   "3\n",
		"node/kubepods/p/pids.max":       "max\n",
		"node/kubepods/p/cpu.stat":       "usage_usec 77\n",
	})
	for name, tree := range map[string]fstest.MapFS{"v1": v1, "v2": v2} {
		t.Run(name, func(t *testing.T) {
			p, err := stats.New(stats.Config{
				Proc: proc(), Cgroups: tree, NodeCgroup: "/node",
				Pods: func() []stats.Pod {
					return []stats.Pod{{Pod: pod("a"), Cgroup: "/node/kubepods/p"}, {Pod: pod("b"), Cgroup: "/node/none"}}
				},
			})
			require.NoError(t, err)
			u, err := p.Usage(t.Context(), time.Time{})
			require.NoError(t, err)
			m := u.Memory
			m.At = time.Time{}
			assert.Equal(t, name == "v2", m.HasCache, "v1 has no line of it")
			m.Cache, m.HasCache = 0, false
			assert.Equal(t, runtime.MemoryUsage{Capacity: 4096, Usage: 1000, WorkingSet: 800, RSS: 700, PageFaults: 7, MajorFaults: 3}, m)
			assert.Equal(t, uint64(100), u.Pids.Max)
			assert.Equal(t, uint64(12), u.Pids.Used)
			assert.Equal(t, uint64(5000), u.CPU.UsageCoreNanoSeconds)
			if name == "v2" {
				assert.InDelta(t, 9.0, u.MemoryPressure.Some.Avg10, 0)
			}
			require.Len(t, u.Pods, 2)
			assert.Equal(t, uint64(300), u.Pods[0].Memory.Usage)
			assert.Zero(t, u.Pods[0].Memory.WorkingSet)
			assert.Zero(t, u.Pods[0].Memory.Capacity)
			assert.Equal(t, uint64(3), u.Pods[0].Pids.Used)
			assert.True(t, u.Pods[1].Memory.At.IsZero())
		})
	}
}

// A rate is taken over a second or more, and starts again with a recreated cgroup.
func TestProvider_Rates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := files(map[string]string{"cpuacct/cpuacct.usage": "0"})
		p, err := stats.New(stats.Config{Proc: proc(), Cgroups: tree})
		require.NoError(t, err)
		const unknown = -1
		observe := func(nanos uint64) int {
			tree["cpuacct/cpuacct.usage"] = &fstest.MapFile{Data: fmt.Append(nil, nanos)}
			u, err := p.Usage(t.Context(), time.Time{})
			require.NoError(t, err)
			s := stats.Summarize("n", time.Time{}, &u, nil)
			if !u.CPU.HasRate {
				assert.Nil(t, s.Node.CPU.UsageNanoCores)
				return unknown
			}
			assert.Equal(t, u.CPU.UsageNanoCores, *s.Node.CPU.UsageNanoCores, "nothing is a rate too")
			return int(u.CPU.UsageNanoCores)
		}
		assert.Equal(t, unknown, observe(1000))
		time.Sleep(999 * time.Millisecond)
		assert.Equal(t, unknown, observe(1500), "too soon")
		time.Sleep(1001 * time.Millisecond)
		assert.Equal(t, 500, observe(2000))
		time.Sleep(10 * time.Millisecond)
		assert.Equal(t, 500, observe(9000), "the rate before")
		time.Sleep(10*time.Second - 10*time.Millisecond)
		assert.Equal(t, 700, observe(9000))
		time.Sleep(time.Second)
		assert.Equal(t, 0, observe(9000), "it rests")
		time.Sleep(10 * time.Millisecond)
		assert.Equal(t, unknown, observe(1), "the group was made again")
	})
}

// Files are counted once each, in blocks, and by Run or on demand.
func TestProvider_DiskUsage(t *testing.T) {
	dir := t.TempDir()
	logs, vol := filepath.Join(dir, "logs"), filepath.Join(dir, "vol")
	require.NoError(t, os.MkdirAll(filepath.Join(logs, "c"), 0o700))
	require.NoError(t, os.MkdirAll(vol, 0o700))
	data := make([]byte, 100_000)
	for i := range data {
		data[i] = byte(i * 7)
	}
	require.NoError(t, os.WriteFile(filepath.Join(vol, "a"), data, 0o600))
	require.NoError(t, os.Link(filepath.Join(vol, "a"), filepath.Join(vol, "b")))
	require.NoError(t, os.Symlink("/usr", filepath.Join(vol, "elsewhere")))
	require.NoError(t, os.WriteFile(filepath.Join(logs, "c", "0.log"), data[:5000], 0o600))
	p, err := stats.New(stats.Config{
		Proc: proc(), Cgroups: files(nil), NodeFS: dir,
		Pods: func() []stats.Pod {
			return []stats.Pod{{Pod: pod("a"), TrackDiskUsage: true, LogDir: logs, Volumes: map[string]stats.Volume{
				"v": {Path: vol}, "none": {Path: filepath.Join(dir, "none")},
			}}}
		},
		ContainerStats: containers{{PodUID: "a", Name: "c", Running: true}, {PodUID: "a", Name: "c", Rootfs: runtime.DiskUsage{At: time.Now(), Bytes: 7, Inodes: 1}}},
	})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.Empty(t, u.Pods[0].Volumes, "no caller has counted yet")
	assert.Equal(t, uint64(7), u.Pods[0].ExitedContainers.Bytes)
	assert.NotZero(t, u.NodeFS.CapacityBytes)
	assert.NotZero(t, u.NodeFS.Device)

	p.RefreshDiskUsage(t.Context(), time.Now())
	u, err = p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	v := u.Pods[0].Volumes["v"]
	assert.GreaterOrEqual(t, v.Bytes, uint64(100_000))
	assert.Less(t, v.Bytes, uint64(200_000))
	assert.Equal(t, uint64(3), v.Inodes, "the directory, the file and the link")
	assert.Zero(t, u.Pods[0].Volumes["none"].Bytes)
	require.Len(t, u.Pods[0].Containers, 1)
	assert.GreaterOrEqual(t, u.Pods[0].Containers[0].Logs.Bytes, uint64(5000))

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	before := v.At
	assert.Eventually(t, func() bool {
		u, err := p.Usage(ctx, time.Time{})
		return err == nil && u.Pods[0].Volumes["v"].At.After(before)
	}, time.Minute, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

type containers []runtime.ContainerUsage

func (c containers) ContainerStats(context.Context) ([]runtime.ContainerUsage, error) { return c, nil }

// A missing part is left out; it is an error only if all parts are missing.
func TestProvider_MissingFiles(t *testing.T) {
	p, err := stats.New(stats.Config{Proc: files(nil), Cgroups: files(nil), NodeFS: "/", Statfs: noFS})
	require.NoError(t, err)
	_, err = p.Usage(t.Context(), time.Time{})
	require.ErrorContains(t, err, "no such disk")
	p, err = stats.New(stats.Config{Proc: proc(), Cgroups: files(nil), NodeFS: "/", Statfs: noFS})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.True(t, u.NodeFS.At.IsZero())
	_, err = stats.New(stats.Config{NodeCgroup: "/a/../b", DiskUsagePeriod: -1})
	for _, part := range []string{`Config.NodeCgroup: "/a/../b"`, "Config.DiskUsagePeriod: must not be negative"} {
		require.ErrorContains(t, err, part)
	}
}

// The real files of this machine can be read.
func TestProvider_ThisMachine(t *testing.T) {
	p, err := stats.New(stats.Config{NodeFS: "/"})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.NotZero(t, u.Memory.WorkingSet)
	assert.Less(t, u.Memory.WorkingSet, u.Memory.Capacity)
	assert.NotZero(t, u.Pids.Used)
	assert.NotZero(t, u.NodeFS.AvailableBytes)
}

func TestSummary_HasTheNamesOfTheKubelet(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	started := metav1.NewTime(at)
	p := pod("a")
	p.Status.StartTime = &started
	disk := func(n uint64) runtime.DiskUsage { return runtime.DiskUsage{At: at, Bytes: n, Inodes: 1} }
	u := &runtime.NodeUsage{
		Memory: runtime.MemoryUsage{At: at, Capacity: 10, Usage: 5, WorkingSet: 4}, CPU: runtime.CPUUsage{At: at, UsageCoreNanoSeconds: 8, UsageNanoCores: 2, HasRate: true},
		Pids: runtime.PidUsage{At: at, Max: 100, Used: 3}, NodeFS: runtime.FSUsage{At: at, CapacityBytes: 50, AvailableBytes: 20, UsedBytes: 30, Inodes: 9, InodesUsed: 4},
		ImageFS: runtime.FSUsage{At: at, CapacityBytes: 60}, MemoryPressure: runtime.PSIStats{At: at, Some: runtime.PSIData{Avg10: 1.5, Total: 7}},
		Pods: []runtime.PodUsage{{
			UID: "a", Namespace: "ns", Name: "p", Memory: runtime.MemoryUsage{At: at, WorkingSet: 2}, Pids: runtime.PidUsage{At: at, Used: 2},
			Containers:       []runtime.ContainerUsage{{Name: "c", Running: true, Rootfs: disk(10), Logs: disk(5)}},
			Volumes:          map[string]runtime.VolumeUsage{"v": {DiskUsage: disk(100)}, "m": {DiskUsage: disk(1000), Uncounted: true}},
			ExitedContainers: disk(1), Files: disk(2), CPU: runtime.CPUUsage{At: at, UsageCoreNanoSeconds: 9},
		}},
	}
	data, err := json.Marshal(stats.Summarize("edge-1", at, u, []*corev1.Pod{p}))
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(data, &got))
	for path, want := range map[string]any{
		"node.nodeName": "edge-1", "node.memory.availableBytes": 6.0, "node.memory.psi.some.avg10": 1.5, "node.memory.workingSetBytes": 4.0,
		"node.cpu.usageNanoCores": 2.0, "node.cpu.usageCoreNanoSeconds": 8.0, "node.fs.inodesFree": 5.0, "node.runtime.imageFs.capacityBytes": 60.0,
		"node.rlimit.maxpid": 100.0, "node.rlimit.curproc": 3.0,
		"pods.0.podRef.uid": "a", "pods.0.startTime": "2026-01-02T03:04:05Z", "pods.0.containers.0.rootfs.usedBytes": 10.0,
		"pods.0.containers.0.logs.usedBytes": 5.0, "pods.0.volume.1.usedBytes": 100.0, "pods.0.volume.1.name": "v",
		"pods.0.ephemeral-storage.usedBytes": 118.0, "pods.0.cpu.usageCoreNanoSeconds": 9.0, "pods.0.cpu.usageNanoCores": nil, "pods.0.process_stats.process_count": 2.0,
	} {
		assert.Equal(t, want, at2(got, path), path)
	}
}

// at2 returns the value at a path of names and indexes.
func at2(v any, path string) any {
	for path != "" && v != nil {
		var key string
		key, path = cut(path)
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func cut(path string) (string, string) {
	for i := range path {
		if path[i] == '.' {
			return path[:i], path[i+1:]
		}
	}
	return path, ""
}

// A wall clock of the runtime that was set back, or is ahead, does not make values old:
// their age counts from when they were received.
func TestProvider_TimesOfContainerStats(t *testing.T) {
	now := time.Now()
	measured := runtime.DiskUsage{At: now.Add(time.Hour).Round(0), Bytes: 1}
	old := runtime.DiskUsage{At: now.Add(-time.Minute).Round(0), Bytes: 1}
	p, err := stats.New(stats.Config{
		Proc: proc(), Cgroups: files(nil), NodeFS: "/", Statfs: noFS,
		Pods: func() []stats.Pod { return []stats.Pod{{Pod: pod("u")}} },
		ContainerStats: containers{
			{PodUID: "u", Name: "ahead", Running: true, Rootfs: measured},
			{PodUID: "u", Name: "old", Running: true, Rootfs: old},
			{PodUID: "u", Name: "unknown", Running: true},
		},
	})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	age := func(i int) time.Duration {
		// By the monotonic clock: the wall clock is set back by hours after this.
		return clocktest.BeforeSetBack(t, time.Now(), -3*time.Hour).Sub(u.Pods[0].Containers[i].Rootfs.At)
	}
	assert.InDelta(t, 0, age(0), float64(time.Minute), "not of the future")
	assert.InDelta(t, time.Minute, age(1), float64(30*time.Second))
	assert.True(t, u.Pods[0].Containers[2].Rootfs.At.IsZero(), "not known")
}
