package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/stats"
)

// resources collects the usage of the node, pods and containers.
type resources struct {
	Usage

	nodeCPU, nodeMemory, nodeSwap                                                    family
	podCPU, podMemory, podSwap                                                       family
	containerCPU, containerMemory, containerSwap, containerSwapLimit, containerStart family
	failed                                                                           family
}

func newResources(u Usage) *resources {
	pod, container := []string{"pod", "namespace"}, []string{"container", "pod", "namespace"}
	return &resources{
		Usage:              u,
		nodeCPU:            counterFamily("node_cpu_usage_seconds_total", "CPU time used by the node."),
		nodeMemory:         gaugeFamily("node_memory_working_set_bytes", "Memory of the node in use that cannot be reclaimed at once."),
		podCPU:             counterFamily("pod_cpu_usage_seconds_total", "CPU time used by a pod.", pod...),
		podMemory:          gaugeFamily("pod_memory_working_set_bytes", "Memory of a pod in use that cannot be reclaimed at once.", pod...),
		containerCPU:       counterFamily("container_cpu_usage_seconds_total", "CPU time used by a container.", container...),
		containerMemory:    gaugeFamily("container_memory_working_set_bytes", "Memory of a container in use that cannot be reclaimed at once.", container...),
		containerStart:     gaugeFamily("container_start_time_seconds", "Start time of a container, in seconds since 1970.", container...),
		nodeSwap:           gaugeFamily("node_swap_usage_bytes", "Swap space that the node uses."),
		podSwap:            gaugeFamily("pod_swap_usage_bytes", "Swap space that a pod uses.", pod...),
		containerSwap:      gaugeFamily("container_swap_usage_bytes", "Swap space that a container uses.", container...),
		containerSwapLimit: gaugeFamily("container_swap_limit_bytes", "Swap space that a container may use.", container...),
		failed:             gaugeFamily("resource_scrape_error", "1 if the usage could not be measured."),
	}
}

// Describe implements prometheus.Collector.
func (r *resources) Describe(ch chan<- *prometheus.Desc) {
	describe(ch, r.nodeCPU, r.nodeMemory, r.podCPU, r.podMemory, r.containerCPU, r.containerMemory, r.containerStart,
		r.nodeSwap, r.podSwap, r.containerSwap, r.containerSwapLimit, r.failed)
}

// Collect implements prometheus.Collector.
func (r *resources) Collect(ch chan<- prometheus.Metric) {
	s, err := r.Summary()
	r.failed.value(ch, time.Time{}, boolValue(err != nil || s.Incomplete != nil), nil)
	if err != nil {
		return
	}
	cpuAndMemory(ch, r.nodeCPU, r.nodeMemory, s.Node.CPU, s.Node.Memory, nil)
	swapUsage(ch, r.nodeSwap, s.Node.Swap, nil)
	for _, pod := range latest(s.Pods) {
		ofPod := newLabels("namespace", pod.PodRef.Namespace, "pod", pod.PodRef.Name)
		cpuAndMemory(ch, r.podCPU, r.podMemory, pod.CPU, pod.Memory, ofPod)
		swapUsage(ch, r.podSwap, pod.Swap, ofPod)
		for i := range pod.Containers {
			c := &pod.Containers[i]
			labels := ofPod.with("container", c.Name)
			if start := c.StartTime; start.Unix() > 0 {
				r.containerStart.value(ch, time.Time{}, float64(start.UnixNano())/float64(time.Second), labels)
			}
			cpuAndMemory(ch, r.containerCPU, r.containerMemory, c.CPU, c.Memory, labels)
			swapUsage(ch, r.containerSwap, c.Swap, labels)
			if limit, ok := swapLimit(c.Swap); ok {
				r.containerSwapLimit.value(ch, c.Swap.Time.Time, limit, labels)
			}
		}
	}
}

func cpuAndMemory(ch chan<- prometheus.Metric, cpu, memory family, c *stats.CPUStats, m *stats.MemoryStats, labels labelSet) {
	if c != nil {
		cpu.nanoseconds(ch, c.Time.Time, c.UsageCoreNanoSeconds, labels)
	}
	if m != nil {
		memory.known(ch, m.Time.Time, m.WorkingSetBytes, labels)
	}
}

func swapUsage(ch chan<- prometheus.Metric, swap family, s *stats.SwapStats, labels labelSet) {
	if s != nil {
		swap.known(ch, s.Time.Time, s.SwapUsageBytes, labels)
	}
}

// swapLimit returns what is available and used together.
func swapLimit(s *stats.SwapStats) (limit float64, ok bool) {
	if s == nil || s.SwapAvailableBytes == nil {
		return 0, false
	}
	limit = float64(*s.SwapAvailableBytes)
	if s.SwapUsageBytes != nil {
		limit += float64(*s.SwapUsageBytes)
	}
	return limit, true
}
