package embedded

import (
	"context"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// metric is one container metric under cadvisor's name.
type metric struct {
	name, help string
	kind       v1.MetricType
	value      func(measured) uint64
}

// metrics returns all metrics; values are integers, as the CRI has no others.
func metrics() []metric {
	const counter, gauge = v1.MetricType_COUNTER, v1.MetricType_GAUGE
	res := func(get func(*v1.LinuxContainerResources) int64) func(measured) uint64 {
		return func(m measured) uint64 { return uint64(max(0, get(m.resources))) }
	}
	known := []metric{
		{"container_cpu_usage_seconds_total", "CPU time used, in seconds.", counter, func(m measured) uint64 { return uint64(m.usage.CPU / time.Second) }},
		{"container_cpu_user_seconds_total", "CPU time used, in seconds; includes the kernel's.", counter, func(m measured) uint64 { return uint64(m.usage.CPU / time.Second) }},
		{"container_memory_working_set_bytes", "Memory in use that cannot be dropped.", gauge, func(m measured) uint64 { return m.usage.WorkingSet }},
		{"container_memory_usage_bytes", "Memory in use.", gauge, func(m measured) uint64 { return m.usage.WorkingSet }},
		{"container_memory_rss", "Memory of the processes themselves.", gauge, func(m measured) uint64 { return m.usage.RSS }},
		{"container_fs_usage_bytes", "Bytes of the writable layer.", gauge, func(m measured) uint64 { return m.usage.Disk }},
		{"container_processes", "Processes in the container.", gauge, func(m measured) uint64 { return m.usage.Processes }},
		{"container_threads", "Threads in the container, at least one a process.", gauge, func(m measured) uint64 { return m.usage.Processes }},
		{"container_network_receive_bytes_total", "Bytes received.", counter, func(m measured) uint64 { return m.usage.RxBytes }},
		{"container_network_transmit_bytes_total", "Bytes sent.", counter, func(m measured) uint64 { return m.usage.TxBytes }},
		{"container_start_time_seconds", "Start of the container, in seconds of the epoch.", gauge, func(m measured) uint64 { return uint64(m.started / int64(time.Second)) }},
		{"container_last_seen", "When it was measured, in seconds of the epoch.", gauge, func(m measured) uint64 { return uint64(m.at / int64(time.Second)) }},
		{"container_spec_cpu_period", "CPU period asked for.", gauge, res((*v1.LinuxContainerResources).GetCpuPeriod)},
		{"container_spec_cpu_quota", "CPU quota asked for.", gauge, res((*v1.LinuxContainerResources).GetCpuQuota)},
		{"container_spec_cpu_shares", "CPU shares asked for.", gauge, res((*v1.LinuxContainerResources).GetCpuShares)},
		{"container_spec_memory_limit_bytes", "Memory limit asked for.", gauge, res((*v1.LinuxContainerResources).GetMemoryLimitInBytes)},
		{"container_spec_memory_swap_limit_bytes", "Memory and swap limit asked for.", gauge, res((*v1.LinuxContainerResources).GetMemorySwapLimitInBytes)},
	}
	for _, name := range unmeasured() {
		known = append(known, metric{name, "Always 0: it is not measured without cgroups and network namespaces.", gauge, func(measured) uint64 { return 0 }})
	}
	return known
}

// unmeasured returns the metrics of cadvisor that only cgroups and network namespaces
// provide. They are reported because clients expect all of them.
func unmeasured() []string {
	return []string{
		"container_blkio_device_usage_total", "container_cpu_cfs_periods_total", "container_cpu_cfs_throttled_periods_total",
		"container_cpu_cfs_throttled_seconds_total", "container_cpu_system_seconds_total", "container_file_descriptors",
		"container_fs_inodes_free", "container_fs_inodes_total", "container_fs_limit_bytes", "container_fs_reads_bytes_total",
		"container_fs_reads_total", "container_fs_writes_bytes_total", "container_fs_writes_total", "container_memory_cache",
		"container_memory_failcnt", "container_memory_failures_total", "container_memory_kernel_usage", "container_memory_mapped_file",
		"container_memory_max_usage_bytes", "container_memory_swap", "container_network_receive_errors_total",
		"container_network_receive_packets_dropped_total", "container_network_receive_packets_total",
		"container_network_transmit_errors_total", "container_network_transmit_packets_dropped_total",
		"container_network_transmit_packets_total", "container_oom_events_total", "container_sockets", "container_threads_max",
		"container_hugetlb_max_usage_bytes", "container_hugetlb_usage_bytes", "container_ulimits_soft",
		"container_spec_memory_reservation_limit_bytes",
		"container_pressure_cpu_stalled_seconds_total", "container_pressure_cpu_waiting_seconds_total",
		"container_pressure_io_stalled_seconds_total", "container_pressure_io_waiting_seconds_total",
		"container_pressure_memory_stalled_seconds_total", "container_pressure_memory_waiting_seconds_total",
	}
}

// ListMetricDescriptors implements the CRI.
func (r *Runtime) ListMetricDescriptors(context.Context, *v1.ListMetricDescriptorsRequest) (*v1.ListMetricDescriptorsResponse, error) {
	resp := &v1.ListMetricDescriptorsResponse{}
	for _, m := range metrics() {
		resp.Descriptors = append(resp.Descriptors, &v1.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: labelKeys()})
	}
	return resp, nil
}

func labelKeys() []string { return []string{"id", "name", "image"} }

// podMetrics measures every ready pod.
func (r *Runtime) podMetrics() []*v1.PodSandboxMetrics {
	byPod := map[string][]*v1.ContainerMetrics{}
	for _, m := range r.measure(func(c *container) bool { return c.state() == v1.ContainerState_CONTAINER_RUNNING }) {
		cm := &v1.ContainerMetrics{ContainerId: m.c.ID}
		for _, d := range metrics() {
			cm.Metrics = append(cm.Metrics, &v1.Metric{
				Name: d.name, Timestamp: m.at, MetricType: d.kind, Value: num(d.value(m)),
				LabelValues: []string{m.c.ID, m.c.Config.GetMetadata().GetName(), m.c.Config.GetImage().GetImage()},
			})
		}
		byPod[m.c.SandboxID] = append(byPod[m.c.SandboxID], cm)
	}
	sandboxes := r.listSandboxes(&v1.PodSandboxFilter{State: &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY}})
	out := make([]*v1.PodSandboxMetrics, len(sandboxes))
	for i, s := range sandboxes {
		out[i] = &v1.PodSandboxMetrics{PodSandboxId: s.GetId(), ContainerMetrics: byPod[s.GetId()]}
	}
	return out
}

// ListPodSandboxMetrics implements the CRI.
func (r *Runtime) ListPodSandboxMetrics(context.Context, *v1.ListPodSandboxMetricsRequest) (*v1.ListPodSandboxMetricsResponse, error) {
	return &v1.ListPodSandboxMetricsResponse{PodMetrics: r.podMetrics()}, nil
}

// StreamPodSandboxMetrics implements the CRI.
func (r *Runtime) StreamPodSandboxMetrics(_ *v1.StreamPodSandboxMetricsRequest, to grpc.ServerStreamingServer[v1.StreamPodSandboxMetricsResponse]) error {
	return inBatches(r.podMetrics(), func(part []*v1.PodSandboxMetrics) error {
		return to.Send(&v1.StreamPodSandboxMetricsResponse{PodSandboxMetrics: part})
	})
}
