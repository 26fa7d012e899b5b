package stats

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
)

// limitedPod has a container with a limit on CPU time, and one without.
func limitedPod() *corev1.Pod {
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "a"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "limited", Resources: corev1.ResourceRequirements{Limits: limits}}, {Name: "free"}}},
	}
}

// A Summary has of containers what runtimes do not report: the page cache, throttling and disks. It is not in the kubelet's JSON.
func TestProvider_ContainerCounters(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	at := time.Now().Add(-time.Second)
	reported := func(name string) runtime.ContainerUsage {
		return runtime.ContainerUsage{
			PodUID: "a", ID: "id-" + name, Name: name, Running: true, CPU: runtime.CPUUsage{At: at}, Memory: runtime.MemoryUsage{At: at, WorkingSet: 1},
		}
	}
	const cpuStat = "usage_usec 9\nnr_periods 100\nnr_throttled 7\nthrottled_usec 5000\n"
	proc := testProc()
	proc["partitions"] = file("major minor  #blocks  name\n\n   8        0  500107608 sda\n   8        1     524288 sda1\n")
	many := strings.Builder{}
	for i := range 1000 {
		fmt.Fprintf(&many, "7:%d rbytes=1\n", i)
	}
	p, err := New(Config{
		Proc: proc, Pods: func() []Pod { return []Pod{{Pod: limitedPod(), Cgroup: "/p"}} }, ContainerStats: containerStats{reported("limited"), reported("free"), reported("exited")},
		Cgroups: fstest.MapFS{
			"cgroup.controllers": {}, "p/memory.current": file("9\n"), "p/memory.stat": file("anon 1\nfile 11\n"),
			"p/id-limited/cpu.stat": file(cpuStat), "p/id-limited/memory.stat": file("anon 1\nfile 4096\nfile_mapped 7\n"),
			"p/id-limited/io.stat": file("8:0 rbytes=10 wbytes=20 rios=3 wios=4 dbytes=5 dios=6\n8:99 rbytes=18446744073709551616 wbytes=x rios=1\n9:0\n\n8:16 8:32 rbytes=6\n8:0 rbytes=1\n"),
			"p/id-limited/cpu.max": file("50000 100000\n"), "p/id-free/cpu.max": file("max 100000\n"),
			"p/id-free/cpu.stat": file(cpuStat), "p/id-free/io.stat": file(many.String()),
		},
	})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), "n", nil)
	require.NoError(t, err)
	require.Len(t, s.Pods, 1)
	assert.Equal(t, uint64(11), *s.Pods[0].Memory.CacheBytes)
	limited, free, exited := s.Pods[0].Containers[0], s.Pods[0].Containers[1], s.Pods[0].Containers[2]
	require.NotNil(t, limited.CPU.Throttling)
	assert.Equal(t, []uint64{100, 7, 5e6}, []uint64{limited.CPU.Throttling.Periods, limited.CPU.Throttling.ThrottledPeriods, limited.CPU.Throttling.ThrottledNanoSeconds})
	assert.Equal(t, uint64(4096), *limited.Memory.CacheBytes)
	assert.Equal(t, []BlockDeviceStats{
		{Device: "/dev/sda", Reads: 3, Writes: 4, BytesRead: 10, BytesWritten: 20}, {Device: "8:99", Reads: 1}, {Device: "8:32", BytesRead: 6},
	}, limited.BlockIO.Devices)
	assert.Equal(t, 50*time.Millisecond, limited.CPU.Throttling.Quota)
	assert.Equal(t, 100*time.Millisecond, limited.CPU.Throttling.Period)
	require.NotNil(t, free.CPU.Throttling)
	assert.Equal(t, ThrottlingStats{Time: free.CPU.Throttling.Time}, *free.CPU.Throttling, "it has no quota")
	assert.Nil(t, exited.CPU.Throttling, "it has no cgroup")
	assert.Nil(t, free.Memory.CacheBytes)
	assert.Len(t, free.BlockIO.Devices, maxBlockDevices)
	assert.Nil(t, exited.BlockIO, "it has no cgroup")
	text, err := json.Marshal(s)
	require.NoError(t, err)
	for _, name := range []string{"sda", "hrottl", "ache"} {
		assert.NotContains(t, string(text), name)
	}
	s, err = p.CPUAndMemoryStats(t.Context(), "n", nil)
	require.NoError(t, err)
	assert.Nil(t, s.Pods[0].Containers[0].BlockIO)
	assert.Nil(t, s.Pods[0].Containers[0].CPU.Throttling)
}

// The quota is that of the cgroup, whatever the limit in the spec: it need not be enforced, and that of the pod applies to a container
// without its own.
func TestGroups_ThrottlingOf(t *testing.T) {
	for content, want := range map[string][2]time.Duration{
		"50000 100000\n":   {50 * time.Millisecond, 100 * time.Millisecond},
		"1000 1000\n":      {time.Millisecond, time.Millisecond},
		"max 100000\n":     {},
		"max\n":            {},
		"":                 {},
		"17592186044415 1": {17592186044415 * time.Microsecond, time.Microsecond}, // the largest quota of the kernel
	} {
		g := openGroups(fstest.MapFS{"cgroup.controllers": {}, "c/cpu.max": {Data: []byte(content)}, "c/cpu.stat": {Data: []byte("nr_periods 3\n")}})
		got, err := g.throttlingOf("/c", time.Unix(1, 0))
		require.NoError(t, err)
		assert.Equal(t, want, [2]time.Duration{got.Quota, got.Period}, "%q", content)
		assert.Equal(t, time.Unix(1, 0), got.At)
		assert.Equal(t, want[0] > 0, got.Periods == 3, "%q", content)
	}
	g := openGroups(fstest.MapFS{"cgroup.controllers": {}, "c/cpu.stat": {Data: []byte("nr_periods 3\n")}})
	_, err := g.throttlingOf("/c", time.Unix(1, 0))
	require.ErrorIs(t, err, fs.ErrNotExist, "the controller is off")
}

// On cgroup v1 the page cache is known.
func TestProvider_ContainerCountersOfV1(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	p, err := New(Config{
		Proc: testProc(), Pods: func() []Pod { return []Pod{{Pod: limitedPod(), Cgroup: "/p"}} },
		ContainerStats: containerStats{{PodUID: "a", ID: "id", Name: "limited", Running: true, CPU: runtime.CPUUsage{At: time.Now()}, Memory: runtime.MemoryUsage{At: time.Now()}}},
		Cgroups:        fstest.MapFS{"memory/p/id/memory.stat": file("cache 1\ntotal_cache 4096\n")},
	})
	require.NoError(t, err)
	s, err := p.Summary(t.Context(), "n", nil)
	require.NoError(t, err)
	c := s.Pods[0].Containers[0]
	assert.Equal(t, uint64(4096), *c.Memory.CacheBytes)
	assert.Nil(t, c.BlockIO)
	assert.Nil(t, c.CPU.Throttling)
}
