package stats

import (
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Containers that run are listed, and those that the runtime does not report but the status has as running. What
// exited ones use counts for the pod.
func TestSummarize_ExitedContainers(t *testing.T) {
	now := time.Now()
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now)}}
	exited := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Status: corev1.PodStatus{
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", State: exited}},
		ContainerStatuses:     []corev1.ContainerStatus{{Name: "unreported", State: running}, {Name: "crashed", State: exited}, {Name: "late", State: exited}},
	}}
	logs := runtime.DiskUsage{At: now, Bytes: 10}
	u := &runtime.NodeUsage{Pods: []runtime.PodUsage{{
		UID: "a", ExitedContainers: runtime.DiskUsage{At: now, Bytes: 1},
		Containers: []runtime.ContainerUsage{
			{Name: "late", Running: true, Logs: logs}, {Name: "init", Logs: logs}, {Name: "unreported", Logs: logs}, {Name: "crashed", Logs: logs},
		},
	}}}
	names := func(pods ...*corev1.Pod) (names []string) {
		s := Summarize("n", now, u, pods).Pods[0]
		assert.Equal(t, uint64(41), *s.EphemeralStorage.UsedBytes)
		for _, c := range s.Containers {
			names = append(names, c.Name)
		}
		return names
	}
	assert.Equal(t, []string{"late", "unreported"}, names(pod))
	assert.Equal(t, []string{"late"}, names(), "of a pod whose status is not known")
}

// Of pods with one name those that run are reported, or else the newest one.
func TestSummarize_PodsOfOneName(t *testing.T) {
	type one struct {
		uid     types.UID
		started int64
		runs    bool
	}
	for name, tc := range map[string]struct {
		pods []one
		want []string
	}{
		"one that runs":         {[]one{{"old", 1, true}, {"new", 2, false}}, []string{"old"}},
		"the new one runs":      {[]one{{"new", 2, true}, {"old", 1, false}}, []string{"new"}},
		"both run":              {[]one{{"old", 1, true}, {"new", 2, true}}, []string{"old", "new"}},
		"two of three run":      {[]one{{"a", 3, false}, {"b", 1, true}, {"c", 2, true}}, []string{"b", "c"}},
		"none runs":             {[]one{{"new", 2, false}, {"old", 1, false}}, []string{"new"}},
		"none is known to have": {[]one{{"first", 0, false}, {"last", 0, false}}, []string{"last"}},
	} {
		u := &runtime.NodeUsage{Pods: []runtime.PodUsage{{UID: "x", Namespace: "other", Name: "p"}, {UID: "y", Namespace: "ns", Name: "q"}}}
		var pods []*corev1.Pod
		for _, p := range tc.pods {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: p.uid}}
			if p.started > 0 {
				pod.Status.StartTime = &metav1.Time{Time: time.Unix(p.started, 0)}
			}
			usage := runtime.PodUsage{UID: p.uid, Namespace: "ns", Name: "p"}
			if p.runs {
				usage.Containers = []runtime.ContainerUsage{{Name: "c", Running: true}}
			}
			pods, u.Pods = append(pods, pod), append(u.Pods, usage)
		}
		var got []string
		for _, p := range Summarize("n", time.Time{}, u, pods).Pods {
			got = append(got, p.PodRef.UID)
		}
		assert.Equal(t, append([]string{"x", "y"}, tc.want...), got, name)
	}
}

// A runtime that reports no rates, as it need not, has those since the previous measurement.
func TestProvider_ContainerRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		used, own := uint64(5e9), false
		containers := containerStats{{}, {PodUID: "a", Name: "without an ID", Running: true, CPU: runtime.CPUUsage{At: time.Now()}}}
		p, err := New(Config{
			Proc: testProc(), Cgroups: fstest.MapFS{"cgroup.controllers": {}}, ContainerStats: containers,
			Pods: func() []Pod { return []Pod{{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}}} },
		})
		require.NoError(t, err)
		rate := func() *uint64 {
			containers[0] = runtime.ContainerUsage{PodUID: "a", ID: "1", Name: "c", Running: true, CPU: runtime.CPUUsage{At: time.Now(), UsageCoreNanoSeconds: used, UsageNanoCores: 9, HasRate: own}}
			s, err := p.Summary(t.Context(), "n", nil)
			require.NoError(t, err)
			assert.Nil(t, s.Pods[0].Containers[1].CPU.UsageNanoCores)
			return s.Pods[0].Containers[0].CPU.UsageNanoCores
		}
		assert.Nil(t, rate())
		time.Sleep(2 * time.Second)
		used += 1e9
		assert.Equal(t, uint64(5e8), *rate())
		time.Sleep(2 * time.Second)
		used = 1e9 // restarted
		assert.Nil(t, rate())
		own = true
		assert.Equal(t, uint64(9), *rate(), "that of the runtime")
		assert.NotContains(t, p.rates, "1", "it is not needed any more")
	})
}

// A runtime that does not answer once has the rate since its previous answer afterwards.
func TestProvider_RateAfterAFailureOfTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var containers containerStats
		p, err := New(Config{
			Proc: testProc(), Cgroups: fstest.MapFS{"cgroup.controllers": {}}, ContainerStats: &containers,
			Pods: func() []Pod { return []Pod{{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}}} },
		})
		require.NoError(t, err)
		measure := func(c containerStats) []runtime.ContainerUsage {
			containers = c
			time.Sleep(10 * time.Second)
			u, err := p.Usage(t.Context(), time.Time{})
			require.NoError(t, err)
			return u.Pods[0].Containers
		}
		used := func(n uint64) containerStats {
			return containerStats{{PodUID: "a", ID: "1", Name: "c", Running: true, CPU: runtime.CPUUsage{At: time.Now().Add(10 * time.Second), UsageCoreNanoSeconds: n}}}
		}
		measure(used(0))
		require.Empty(t, measure(nil))
		c := measure(used(20e9))
		assert.True(t, c[0].CPU.HasRate)
		assert.Equal(t, uint64(1e9), c[0].CPU.UsageNanoCores)
		measure(containerStats{})
		assert.NotContains(t, p.rates, "1", "it is gone")
	})
}

// A sample that is older than the previous one, as of a call that took longer, is no restart.
func TestProvider_RateOfAnOlderSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		time.Sleep(time.Hour)
		var containers containerStats
		p, err := New(Config{
			Proc: testProc(), Cgroups: fstest.MapFS{"cgroup.controllers": {}}, ContainerStats: &containers,
			Pods: func() []Pod { return []Pod{{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}}} },
		})
		require.NoError(t, err)
		rate := func(second, used uint64) float64 {
			cpu := runtime.CPUUsage{At: began.Add(time.Duration(second) * time.Second), UsageCoreNanoSeconds: used * 1e9}
			containers = containerStats{{PodUID: "a", ID: "1", Name: "c", Running: true, CPU: cpu}}
			u, err := p.Usage(t.Context(), time.Time{})
			require.NoError(t, err)
			if cpu = u.Pods[0].Containers[0].CPU; !cpu.HasRate {
				return -1
			}
			return float64(cpu.UsageNanoCores) / 1e9
		}
		assert.InDelta(t, -1.0, rate(10, 0), 0)
		assert.InDelta(t, 2.0, rate(20, 20), 0)
		assert.InDelta(t, 2.0, rate(19, 18), 0)
		assert.InDelta(t, 3.0, rate(30, 50), 0, "since the newest sample")
		assert.InDelta(t, -1.0, rate(40, 10), 0, "restarted")
		assert.InDelta(t, 1.0, rate(1000, 970), 0)
		assert.InDelta(t, -1.0, rate(900, 980), 0, "the clock was set back")
		assert.InDelta(t, 2.0, rate(910, 1000), 0)
	})
}

// A runtime may report figures of exited containers, too. One of each name runs, and is there once.
func TestProvider_ExitedContainersWithFigures(t *testing.T) {
	now := time.Now()
	container := func(pod types.UID, id, name string, memory uint64, age time.Duration) runtime.ContainerUsage {
		at := now.Add(-age)
		return runtime.ContainerUsage{
			PodUID: pod, ID: id, Name: name, Running: true, CPU: runtime.CPUUsage{At: at},
			Memory: runtime.MemoryUsage{At: at, WorkingSet: memory}, Rootfs: runtime.DiskUsage{At: at, Bytes: 1},
		}
	}
	p, err := New(Config{
		Proc: testProc(), Cgroups: fstest.MapFS{"cgroup.controllers": {}},
		Pods: func() []Pod {
			return []Pod{{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}}, {Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "b"}}}}
		},
		ContainerStats: containerStats{
			container("a", "1", "c", 0, 0), container("a", "2", "c", 7, time.Second), container("a", "3", "c", 0, 0), container("a", "4", "d", 0, 0),
			container("b", "5", "c", 5, time.Second), container("b", "6", "c", 6, 0), container("b", "7", "c", 7, time.Minute),
		},
	})
	require.NoError(t, err)
	u, err := p.Usage(t.Context(), time.Time{})
	require.NoError(t, err)
	ids := func(pod int) (ids []string) {
		for _, c := range u.Pods[pod].Containers {
			ids = append(ids, c.ID)
		}
		return ids
	}
	assert.Equal(t, []string{"2", "4"}, ids(0))
	assert.Equal(t, []string{"6"}, ids(1))
	assert.Equal(t, uint64(2), u.Pods[0].ExitedContainers.Bytes, "what the others use counts for the pod")
	s, err := p.CPUAndMemoryStats(t.Context(), "n", nil)
	require.NoError(t, err)
	assert.Len(t, s.Pods[0].Containers, 2)
	assert.Len(t, s.Pods[1].Containers, 1)
}

// The memory that is available is below a limit: containerd reports 0 without one.
func TestProvider_AvailableMemory(t *testing.T) {
	limited := func(name string) corev1.Container {
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10")}}}
	}
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	now := time.Now()
	container := func(name string, capacity uint64) runtime.ContainerUsage {
		return runtime.ContainerUsage{PodUID: "a", Name: name, Running: true, Memory: runtime.MemoryUsage{At: now, WorkingSet: 10, Capacity: capacity}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "no limit"}, limited("at its limit"), {Name: "limit of the runtime"}}, InitContainers: []corev1.Container{limited("sidecar")},
	}}
	group := ""
	p, err := New(Config{
		Proc: testProc(), Pods: func() []Pod { return []Pod{{Pod: pod, Cgroup: group}} },
		Cgroups: fstest.MapFS{"cgroup.controllers": {}, "p/memory.current": file("40"), "p/memory.stat": file("anon 1\n"), "p/memory.max": file("100")},
		ContainerStats: containerStats{
			container("no limit", 10), container("at its limit", 10), container("limit of the runtime", 15), container("sidecar", 10), container("debug", 10),
		},
	})
	require.NoError(t, err)
	available := func() (pod int, containers map[string]int) {
		s, err := p.Summary(t.Context(), "n", nil)
		require.NoError(t, err)
		of := func(m *MemoryStats) int {
			if m.AvailableBytes == nil {
				return -1
			}
			return int(*m.AvailableBytes)
		}
		containers = map[string]int{}
		for _, c := range s.Pods[0].Containers {
			containers[c.Name] = of(c.Memory)
		}
		return of(s.Pods[0].Memory), containers
	}
	ofPod, ofContainers := available()
	assert.Equal(t, map[string]int{"no limit": -1, "at its limit": 0, "limit of the runtime": 5, "sidecar": 0, "debug": -1}, ofContainers)
	assert.Equal(t, -1, ofPod, "a sum of containers without a limit has none")
	group = "/p"
	ofPod, _ = available()
	assert.Equal(t, -1, ofPod, "not all containers have a limit")
	pod.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100")}}
	ofPod, _ = available()
	assert.Equal(t, 60, ofPod)
	pod.Spec.Resources, pod.Spec.Containers = nil, pod.Spec.Containers[1:2]
	ofPod, _ = available()
	assert.Equal(t, 60, ofPod)
}
