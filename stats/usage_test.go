package stats

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// containerStats are the containers that a runtime reports.
type containerStats []runtime.ContainerUsage

func (c containerStats) ContainerStats(context.Context) ([]runtime.ContainerUsage, error) {
	if c == nil {
		return nil, errors.New("runtime is down")
	}
	return c, nil
}

// testProc is a machine with 1000 KiB of memory.
func testProc() fstest.MapFS {
	return fstest.MapFS{
		"meminfo": {Data: []byte("MemTotal: 1000 kB\nMemFree: 400 kB\n")}, "stat": {Data: []byte("btime 1700000000\n")},
		"pressure/io": {Data: []byte("some avg10=1.00 avg60=0.00 avg300=0.00 total=7\n")},
	}
}

// EV-7: the usage of a pod has the logs and writable layers of its containers, of exited
// ones together, and the logs of containers that the runtime does not report.
func TestProvider_ContainersOfAPod(t *testing.T) {
	pod := podOf(t, "a")
	require.NoError(t, os.MkdirAll(filepath.Join(pod.LogDir, "init"), 0o700))
	now := time.Now()
	layer := func(n uint64) runtime.DiskUsage { return runtime.DiskUsage{At: now, Bytes: n} }
	p, err := New(Config{
		Proc: testProc(), Cgroups: fstest.MapFS{}, Pods: func() []Pod { return []Pod{pod} },
		ContainerStats: containerStats{
			{PodUID: "a", Name: "main", Running: true, Rootfs: layer(5)},
			{PodUID: "a", Name: "reported", Running: true, Logs: layer(6)},
			{PodUID: "a", Name: "exited", Rootfs: layer(10)},
			{PodUID: "a", Name: "exited", Rootfs: layer(20)},
			{PodUID: "a", Name: "exited"},
			{PodUID: "other", Name: "main", Running: true},
		},
	})
	require.NoError(t, err)
	p.RefreshDiskUsage(t.Context(), time.Now())
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	require.Len(t, u.Pods, 1)
	assert.Equal(t, uint64(30), u.Pods[0].ExitedContainers.Bytes)
	var names []string
	for _, c := range u.Pods[0].Containers {
		names = append(names, c.Name)
	}
	assert.Equal(t, []string{"main", "reported", "init"}, names)
	bytesIn(t, u.Pods[0].Containers[0].Logs, 30_000)
	assert.Equal(t, uint64(6), u.Pods[0].Containers[1].Logs.Bytes, "as the runtime reports")
	assert.False(t, u.Pods[0].Containers[2].Logs.At.IsZero())
}

// A runtime that cannot report its containers leaves out their usage only.
func TestProvider_RuntimeWithoutContainerStats(t *testing.T) {
	var log logtest.Buffer
	p, err := New(Config{
		Proc: testProc(), Cgroups: fstest.MapFS{}, ContainerStats: containerStats(nil),
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.NotZero(t, u.Memory.Capacity)
	assert.Contains(t, log.String(), "container stats: runtime is down")
}

// State of pods that are not measured any more is dropped.
func TestProvider_ForgetsRemovedPods(t *testing.T) {
	pods := []Pod{podOf(t, "a"), podOf(t, "b")}
	pods[0].Cgroup, pods[1].Cgroup = "/a", "/b"
	cpu := func() *fstest.MapFile { return &fstest.MapFile{Data: []byte("usage_usec 5\n")} }
	p, err := New(Config{
		Proc: testProc(), Cgroups: fstest.MapFS{"cgroup.controllers": {}, "a/cpu.stat": cpu(), "b/cpu.stat": cpu(), "cpu.stat": cpu()},
		Pods: func() []Pod { return pods },
	})
	require.NoError(t, err)
	measure := func() {
		p.RefreshDiskUsage(t.Context(), time.Now())
		_, err := p.Usage(t.Context(), time.Time{})
		require.NoError(t, err)
	}
	measure()
	p.partial["a"], p.partial["b"] = podDisk{}, podDisk{}
	assert.Len(t, p.disks, 2)
	assert.Len(t, p.rates, 3)
	pods = pods[1:]
	_, err = p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	assert.Contains(t, p.disks, pods[0].Pod.UID)
	assert.Len(t, p.disks, 1)
	assert.Contains(t, p.partial, pods[0].Pod.UID)
	assert.Len(t, p.partial, 1)
	assert.Contains(t, p.rates, "/b")
	assert.Contains(t, p.rates, "")
	assert.Len(t, p.rates, 2)
}

// Run counts the files of TrackedPods, and drops the counts of removed pods.
func TestRun_CountsTrackedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracked, other := podOf(t, "tracked"), podOf(t, "other")
		p, err := New(Config{
			Proc: testProc(), Cgroups: fstest.MapFS{},
			Pods: func() []Pod { return []Pod{tracked, other} }, TrackedPods: func() []Pod { return []Pod{tracked} },
		})
		require.NoError(t, err)
		p.counts["removed"] = newPodCount(&other)
		p.partial["removed"] = podDisk{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(3 * time.Minute)
		assert.False(t, p.counted("tracked").IsZero())
		assert.True(t, p.counted("other").IsZero())
		cancel()
		require.NoError(t, <-done)
		assert.NotContains(t, p.counts, "removed")
		assert.NotContains(t, p.partial, "removed")
	})
}

// A log directory that cannot be read, and a path that is too long, are logged; the rest
// of the pod is counted.
func TestRefreshDiskUsage_UnreadablePaths(t *testing.T) {
	var log logtest.Buffer
	pod := podOf(t, "a")
	pod.LogDir = pod.Files[0] // a file
	pod.Volumes["long"] = Volume{Path: "/" + strings.Repeat("x", 300)}
	p, err := New(Config{
		Proc: testProc(), Cgroups: fstest.MapFS{}, Pods: func() []Pod { return []Pod{pod} },
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	require.NoError(t, err)
	p.RefreshDiskUsage(t.Context(), time.Now())
	assert.Contains(t, log.String(), "measuring pod disk usage failed")
	assert.Contains(t, log.String(), "not a directory")
	assert.Contains(t, log.String(), "file name too long")
	bytesIn(t, p.disks["a"].volumes["vol"].DiskUsage, 10_000)

	log.Reset()
	pod.LogDir = "/nonexistent"
	delete(pod.Volumes, "long")
	p.RefreshDiskUsage(t.Context(), time.Now())
	assert.Empty(t, log.String(), "a pod without logs, and a complete count")
}

// Summary counts files, measures, and takes start times from the node and the statuses.
func TestProvider_Summary(t *testing.T) {
	pod := podOf(t, "a")
	at := metav1.NewTime(time.Unix(1_700_000_100, 0))
	pod.Pod.Status.StartTime = &at
	pod.Pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
		{Name: "sidecar", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at.Add(time.Minute))}}},
	}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "b"}}
	p, err := New(Config{
		Proc: testProc(), Cgroups: fstest.MapFS{}, Pods: func() []Pod { return []Pod{pod, {Pod: other}} },
		ContainerStats: containerStats{{PodUID: "a", Name: "sidecar", Running: true}, {PodUID: "b", Name: "c", Running: true}},
	})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), "edge-1", []*corev1.Pod{pod.Pod})
	require.NoError(t, err)
	assert.Equal(t, int64(1_700_000_000), s.Node.StartTime.Unix())
	require.NotNil(t, s.Node.IO)
	assert.Equal(t, uint64(7), s.Node.IO.PSI.Some.Total)
	assert.Nil(t, s.Node.Runtime, "no file system is known")
	require.Len(t, s.Pods, 2)
	assert.True(t, s.Pods[0].StartTime.Equal(&at))
	names := map[string]metav1.Time{}
	for _, c := range s.Pods[0].Containers {
		names[c.Name] = c.StartTime
	}
	assert.Equal(t, at.Add(time.Minute), names["sidecar"].Time)
	assert.NotContains(t, names, "main", "it has exited")
	assert.True(t, s.Pods[1].StartTime.IsZero(), "its pod is unknown")
	require.NotNil(t, s.Pods[0].EphemeralStorage)
	assert.GreaterOrEqual(t, *s.Pods[0].EphemeralStorage.UsedBytes, uint64(130_000))
	assert.Nil(t, s.Pods[1].EphemeralStorage)

	broken, err := New(Config{Proc: fstest.MapFS{}, Cgroups: fstest.MapFS{}})
	require.NoError(t, err)
	_, err = broken.Summary(t.Context(), "edge-1", nil)
	require.ErrorContains(t, err, "measure node: ")
}

// Disk usage that is not known completely is left out of the sum of a pod.
func TestSummarize_PartialDiskUsage(t *testing.T) {
	now := time.Now()
	u := &runtime.NodeUsage{ContainerFS: runtime.FSUsage{At: now}, Pods: []runtime.PodUsage{{
		UID: "a", Files: runtime.DiskUsage{At: now, Bytes: 5},
		Volumes: map[string]runtime.VolumeUsage{"v": {DiskUsage: runtime.DiskUsage{At: now, Bytes: 100, Partial: true}}},
	}}}
	s := Summarize("edge-1", now, u, []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "a"}}})
	assert.Equal(t, uint64(5), *s.Pods[0].EphemeralStorage.UsedBytes)
	assert.Empty(t, s.Pods[0].VolumeStats)
	assert.NotNil(t, s.Node.Runtime.ContainerFS, "also without one of images")
	assert.True(t, s.Pods[0].StartTime.IsZero())
}

// A pressure that JSON has no form for is left out.
func TestSummarize_InvalidPressure(t *testing.T) {
	now := time.Now()
	for _, n := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		bad := runtime.PSIStats{At: now, Full: runtime.PSIData{Avg60: n}}
		s := Summarize("edge-1", now, &runtime.NodeUsage{IOPressure: bad, CPUPressure: bad, CPU: runtime.CPUUsage{At: now}}, nil)
		assert.Nil(t, s.Node.IO)
		assert.Nil(t, s.Node.CPU.PSI)
		_, err := json.Marshal(s)
		require.NoError(t, err)
	}
}

// imageFSResult is the result of a runtime about its file systems.
type imageFSResult struct {
	images []runtime.FSUsage
	err    error
	calls  int
}

func (r *imageFSResult) ImageFS(context.Context) (images, containers []runtime.FSUsage, err error) {
	r.calls++
	return r.images, nil, r.err
}

// The file systems of images are queried again after an error and when one was removed.
func TestProvider_ImageFSErrors(t *testing.T) {
	var log logtest.Buffer
	fail := map[string]bool{}
	r := &imageFSResult{}
	p, err := New(Config{
		Proc: testProc(), Cgroups: fstest.MapFS{}, NodeFS: "/node", ImageFS: r,
		Statfs: func(path string) (runtime.FSUsage, error) {
			if fail[path] {
				return runtime.FSUsage{}, errors.New("statfs " + path + " failed")
			}
			return runtime.FSUsage{At: time.Now(), Mountpoint: path}, nil
		},
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(t, err)
	measure := func(calls int, logged string) runtime.NodeUsage {
		t.Helper()
		log.Reset()
		u, err := p.NodeUsage(t.Context())
		require.NoError(t, err)
		assert.Equal(t, calls, r.calls)
		assert.Contains(t, log.String(), logged)
		return u
	}
	u := measure(1, "find image file system: runtime reports no image file system")
	assert.True(t, u.ImageFS.At.IsZero())
	r.err = errors.New("runtime is down")
	measure(2, "find image file system: runtime is down")
	r.err, r.images = nil, []runtime.FSUsage{{Mountpoint: "/images/"}}
	u = measure(3, "")
	assert.Equal(t, "/images", u.ImageFS.Mountpoint)
	assert.Equal(t, "/images", u.ContainerFS.Mountpoint)
	measure(3, "")
	fail["/node"] = true
	measure(3, "statfs /node failed")
	fail["/images"] = true
	u = measure(3, "statfs /images failed")
	assert.True(t, u.ImageFS.At.IsZero())
	fail["/images"] = false
	u = measure(4, "")
	assert.Equal(t, "/images", u.ImageFS.Mountpoint)
}

// The cgroup of the node is a clean absolute path.
func TestNew_NodeCgroup(t *testing.T) {
	for _, group := range []string{"node", "/node/", "/a//b", "/a/../b"} {
		_, err := New(Config{NodeCgroup: group})
		assert.ErrorContains(t, err, "Config.NodeCgroup: ", group)
	}
	_, err := New(Config{NodeCgroup: "/node"})
	require.NoError(t, err)
}

// Ephemeral containers have a start time, too.
func TestSummarize_StartOfEphemeralContainer(t *testing.T) {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Status: corev1.PodStatus{EphemeralContainerStatuses: []corev1.ContainerStatus{
		{Name: "debug", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}},
	}}}
	u := &runtime.NodeUsage{Pods: []runtime.PodUsage{{UID: "a", Containers: []runtime.ContainerUsage{{Name: "debug", Running: true}}}}}
	assert.Equal(t, at, Summarize("edge-1", at.Time, u, []*corev1.Pod{pod}).Pods[0].Containers[0].StartTime)
}

// A pod without a cgroup of a known name has the sums of its containers, as old as the oldest value in them; nothing is known of one of
// whose containers nothing is known. What its cgroup says is more than they use and stays.
func TestSummarize_PodWithoutCgroup(t *testing.T) {
	at, later := time.Unix(1_700_000_000, 0), time.Unix(1_700_000_005, 0)
	container := func(at time.Time, n uint64, bounded bool) runtime.ContainerUsage {
		c := runtime.ContainerUsage{
			CPU:    runtime.CPUUsage{At: at, UsageCoreNanoSeconds: n, UsageNanoCores: 2 * n, HasRate: bounded},
			Memory: runtime.MemoryUsage{At: at, Usage: 3 * n, WorkingSet: 2 * n, RSS: n, PageFaults: 5 * n, MajorFaults: 4 * n},
			Swap:   runtime.SwapUsage{At: at, Usage: n, Limit: 10 * n, HasLimit: bounded},
		}
		if bounded {
			c.Memory.Capacity = 10 * n
		}
		return c
	}
	u := &runtime.NodeUsage{Pods: []runtime.PodUsage{
		{UID: "bounded", Name: "bounded", Containers: []runtime.ContainerUsage{container(later, 1, true), {Name: "unknown"}, container(at, 10, true)}},
		{UID: "unbounded", Name: "unbounded", Containers: []runtime.ContainerUsage{container(at, 1, true), container(later, 10, false)}},
		{UID: "unknown", Name: "unknown", Containers: []runtime.ContainerUsage{{Name: "unknown"}}},
		{UID: "cgroup", Name: "cgroup", Memory: runtime.MemoryUsage{At: at, WorkingSet: 99}, Containers: []runtime.ContainerUsage{container(at, 1, true)}},
	}}
	pods := Summarize("edge-1", at, u, nil).Pods

	require.NotNil(t, pods[0].CPU)
	assert.Equal(t, []uint64{11, 22}, []uint64{*pods[0].CPU.UsageCoreNanoSeconds, *pods[0].CPU.UsageNanoCores})
	m := pods[0].Memory
	require.NotNil(t, m)
	assert.Equal(t, []uint64{33, 22, 11, 55, 44, 88},
		[]uint64{*m.UsageBytes, *m.WorkingSetBytes, *m.RSSBytes, *m.PageFaults, *m.MajorPageFaults, *m.AvailableBytes})
	assert.Equal(t, []metav1.Time{metav1.NewTime(at), metav1.NewTime(at)}, []metav1.Time{pods[0].CPU.Time, m.Time})
	used, available := swap(pods[0].Swap)
	assert.Equal(t, []int{11, 99}, []int{used, available})

	assert.Nil(t, pods[1].CPU.UsageNanoCores)
	assert.Nil(t, pods[1].Memory.AvailableBytes)
	used, available = swap(pods[1].Swap)
	assert.Equal(t, []int{11, -1}, []int{used, available})

	assert.Nil(t, pods[2].CPU)
	assert.Nil(t, pods[2].Memory)
	assert.Nil(t, pods[2].Swap)
	assert.Equal(t, uint64(99), *pods[3].Memory.WorkingSetBytes)
	assert.True(t, u.Pods[0].Memory.At.IsZero(), "the measurement is read-only")
}

// A Summary says that the runtime did not report its containers.
func TestProvider_IncompleteSummary(t *testing.T) {
	p, err := New(Config{Proc: testProc(), Cgroups: fstest.MapFS{}, ContainerStats: containerStats(nil)})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), "edge-1", nil)
	require.NoError(t, err)
	require.EqualError(t, s.Incomplete, "container stats: runtime is down")
	assert.NotNil(t, s.Node.Memory)
	p.cfg.ContainerStats = containerStats{}
	s, err = p.Summary(t.Context(), "edge-1", nil)
	require.NoError(t, err)
	require.NoError(t, s.Incomplete)
}
