package prom_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/stats"
)

// busy has pods with one container each, of which all is known.
func busy(pods int) prom.Usage {
	at := metav1.NewTime(time.Unix(1000, 0))
	known := func() *uint64 { return new(uint64(7)) }
	var s stats.Summary
	var list []*corev1.Pod
	for i := range pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i), Namespace: "default", UID: types.UID(fmt.Sprint("uid-", i))}}
		pod.Spec.Containers = []corev1.Container{{Name: "app"}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", Image: "nginx:1", ContainerID: fmt.Sprint("containerd://id-", i)}}
		list = append(list, pod)
		memory := &stats.MemoryStats{Time: at, UsageBytes: known(), WorkingSetBytes: known(), RSSBytes: known(), CacheBytes: known(), PageFaults: known(), MajorPageFaults: known()}
		one := stats.InterfaceStats{Name: "eth0", RxBytes: known(), RxPackets: known(), RxErrors: known(), RxDropped: known(), TxBytes: known(), TxPackets: known(), TxErrors: known(), TxDropped: known()}
		s.Pods = append(s.Pods, stats.PodStats{
			PodRef: stats.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)}, StartTime: at,
			CPU: &stats.CPUStats{Time: at, UsageCoreNanoSeconds: known()}, Memory: memory, Network: &stats.NetworkStats{Time: at, Interfaces: []stats.InterfaceStats{one}},
			Containers: []stats.ContainerStats{{
				Name: "app", StartTime: at, Memory: memory,
				CPU: &stats.CPUStats{
					Time: at, UsageCoreNanoSeconds: known(),
					Throttling: &stats.ThrottlingStats{Time: at, Quota: 25 * time.Millisecond, Period: 50 * time.Millisecond, Periods: 100, ThrottledPeriods: 7, ThrottledNanoSeconds: 1.5e9},
				},
				BlockIO: &stats.BlockIOStats{Time: at, Devices: []stats.BlockDeviceStats{{Device: "/dev/sda", Reads: 1, Writes: 2, BytesRead: 3, BytesWritten: 4}}},
			}},
		})
	}
	return prom.Usage{Summary: func() (stats.Summary, error) { return s, nil }, Pods: func() []*corev1.Pod { return list }}
}

// What dashboards and the alert CPUThrottlingHigh read of a container: throttling, page cache and disks.
func TestRegisterContainers_ThrottlingCacheDisks(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterContainers(reg, busy(1)))
	const (
		app  = `{container="app",id="/kubepods/poduid-0/id-0",image="nginx:1",name="id-0",namespace="default",pod="web-0"} `
		pod  = `{container="",id="/kubepods/poduid-0",image="",name="",namespace="default",pod="web-0"} `
		disk = `{container="app",device="/dev/sda",id="/kubepods/poduid-0/id-0",image="nginx:1",name="id-0",namespace="default",pod="web-0"} `
	)
	for name, want := range map[string][]string{
		"container_cpu_cfs_periods_total":           {app + "100"},
		"container_cpu_cfs_throttled_periods_total": {app + "7"},
		"container_cpu_cfs_throttled_seconds_total": {app + "1.5"},
		"container_spec_cpu_quota":                  {app + "25000"},
		"container_spec_cpu_period":                 {app + "50000"},
		"container_memory_cache":                    {pod + "7", app + "7"},
		"container_fs_reads_total":                  {disk + "1"},
		"container_fs_writes_total":                 {disk + "2"},
		"container_fs_reads_bytes_total":            {disk + "3"},
		"container_fs_writes_bytes_total":           {disk + "4"},
	} {
		at := " 1000000"
		if strings.HasPrefix(name, "container_spec_") {
			at = ""
		}
		for i := range want {
			want[i] = name + want[i] + at
		}
		assert.Equal(t, want, series(t, reg, name))
	}
	wellFormed(t, reg)
}

// A limit in the spec is no quota where the kernel has none, as with cpuCFSQuota: false and for exclusive CPUs.
func TestRegisterContainers_WithoutQuota(t *testing.T) {
	u := busy(1)
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	u.Pods()[0].Spec.Containers[0].Resources.Limits = limits
	s, err := u.Summary()
	require.NoError(t, err)
	for throttling, want := range map[*stats.ThrottlingStats]int{nil: 1, {}: 0} {
		s.Pods[0].Containers[0].CPU.Throttling = throttling
		reg := prometheus.NewPedanticRegistry()
		require.NoError(t, prom.RegisterContainers(reg, u))
		for _, name := range []string{"container_spec_cpu_quota", "container_spec_cpu_period"} {
			assert.Len(t, series(t, reg, name), want, "%s with throttling %v", name, throttling)
		}
		assert.Empty(t, series(t, reg, "container_cpu_cfs_periods_total"))
		assert.Len(t, series(t, reg, "container_spec_cpu_shares"), 1)
	}
}

// The series of a container share their labels, which are most of the memory of a scrape otherwise.
func TestRegisterContainers_SharesLabels(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterContainers(reg, busy(2)))
	families, err := reg.Gather()
	require.NoError(t, err)
	pairs := map[any]bool{}
	labels := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels += len(m.GetLabel())
			for _, l := range m.GetLabel() {
				pairs[l] = true
			}
		}
	}
	assert.Less(t, 5*len(pairs), labels, "%d labels, of which %d are different ones", labels, len(pairs))
}

// What a runtime reports as an image need not be text. A panic in a scrape would end the process.
func TestRegisterContainers_InvalidText(t *testing.T) {
	u := busy(1)
	u.Pods()[0].Status.ContainerStatuses[0].Image = "nginx\xff:1"
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, prom.RegisterContainers(reg, u))
	assert.Contains(t, scrape(t, reg), "image=\"nginx\uFFFD:1\"")
	assert.Equal(t, "nginx\xff:1", u.Pods()[0].Status.ContainerStatuses[0].Image)
}

// A scrape of the containers of 1,000 pods, and one of their resources, as over HTTP.
func BenchmarkScrape(b *testing.B) {
	u := busy(1000)
	for name, register := range map[string]func(prometheus.Registerer, prom.Usage) error{"containers": prom.RegisterContainers, "resources": prom.RegisterResources} {
		b.Run(name, func(b *testing.B) {
			reg := prometheus.NewRegistry()
			require.NoError(b, register(reg, u))
			h := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				w.Body = nil
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			}
		})
	}
}
