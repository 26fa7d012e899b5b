package prom

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/stats"
)

// containers collects the usage of containers and pods under the names of cAdvisor. A
// series without a container is that of the pod.
type containers struct {
	Usage

	cpu, memoryUsage, memorySet, memoryRSS, memoryFailures, fs, start, processes family
	cpuQuota, cpuPeriod, cpuShares, memoryLimit, memorySwap, memoryCache         family
	periods, throttledPeriods, throttled, threads                                family
	reads, writes, bytesRead, bytesWritten                                       family
	machineCPU, machineMemory, failed                                            family

	network                                 []interfaceFamily
	cpuPressure, memoryPressure, ioPressure pressureFamily
}

func newContainers(u Usage) *containers {
	gauge := func(name, help string, more ...string) family {
		return gaugeFamily(name, help, append([]string{"container", "id", "image", "name", "namespace", "pod"}, more...)...)
	}
	counter := func(name, help string, more ...string) family {
		return counterFamily(name, help, append([]string{"container", "id", "image", "name", "namespace", "pod"}, more...)...)
	}
	return &containers{
		Usage:            u,
		cpu:              counter("container_cpu_usage_seconds_total", "CPU time used.", "cpu"),
		memoryUsage:      gauge("container_memory_usage_bytes", "Memory in use, with all caches."),
		memorySet:        gauge("container_memory_working_set_bytes", "Memory in use that cannot be reclaimed at once."),
		memoryRSS:        gauge("container_memory_rss", "Bytes of anonymous memory in use."),
		memorySwap:       gauge("container_memory_swap", "Bytes of swap space in use."),
		memoryCache:      gauge("container_memory_cache", "Bytes of the page cache in use."),
		memoryFailures:   counter("container_memory_failures_total", "Page faults.", "failure_type", "scope"),
		fs:               gauge("container_fs_usage_bytes", "Bytes of the writable layer.", "device"),
		start:            gauge("container_start_time_seconds", "Start time, in seconds since 1970."),
		processes:        gauge("container_processes", "Tasks of the pod."),
		threads:          gauge("container_threads", "Threads of the pod."),
		cpuQuota:         gauge("container_spec_cpu_quota", "CPU time in µs that the container may use in each period."),
		cpuPeriod:        gauge("container_spec_cpu_period", "Length in µs of the period of the CPU quota."),
		cpuShares:        gauge("container_spec_cpu_shares", "Weight of the container when CPU time is scarce."),
		memoryLimit:      gauge("container_spec_memory_limit_bytes", "Memory that the container may use, 0 if it has no limit."),
		machineCPU:       gaugeFamily("machine_cpu_cores", "Logical CPUs of the node."),
		machineMemory:    gaugeFamily("machine_memory_bytes", "Memory of the node."),
		failed:           gaugeFamily("container_scrape_error", "1 if the usage could not be measured."),
		periods:          counter("container_cpu_cfs_periods_total", "Periods of the CPU quota in which there were tasks to run."),
		throttledPeriods: counter("container_cpu_cfs_throttled_periods_total", "Periods of the CPU quota in which tasks had to wait for the next one."),
		throttled:        counter("container_cpu_cfs_throttled_seconds_total", "Time for which tasks had to wait for the next period of the CPU quota."),
		reads:            counter("container_fs_reads_total", "Reads from a disk.", "device"),
		writes:           counter("container_fs_writes_total", "Writes to a disk.", "device"),
		bytesRead:        counter("container_fs_reads_bytes_total", "Bytes read from a disk.", "device"),
		bytesWritten:     counter("container_fs_writes_bytes_total", "Bytes written to a disk.", "device"),

		network:        interfaceFamilies(counter),
		cpuPressure:    pressureFamilyOf(counter, "cpu", "CPU time"),
		memoryPressure: pressureFamilyOf(counter, "memory", "memory"),
		ioPressure:     pressureFamilyOf(counter, "io", "disks"),
	}
}

// Describe implements prometheus.Collector.
func (c *containers) Describe(ch chan<- *prometheus.Desc) {
	describe(ch, c.cpu, c.memoryUsage, c.memorySet, c.memoryRSS, c.memoryFailures, c.fs, c.start, c.processes, c.threads,
		c.cpuQuota, c.cpuPeriod, c.cpuShares, c.memoryLimit, c.memorySwap, c.machineCPU, c.machineMemory, c.failed,
		c.memoryCache, c.periods, c.throttledPeriods, c.throttled, c.reads, c.writes, c.bytesRead, c.bytesWritten)
	for _, f := range c.network {
		ch <- f.desc
	}
	for _, f := range []pressureFamily{c.cpuPressure, c.memoryPressure, c.ioPressure} {
		describe(ch, f.waiting, f.stalled)
	}
}

// Collect implements prometheus.Collector.
func (c *containers) Collect(ch chan<- prometheus.Metric) {
	if c.Capacity != nil {
		capacity := c.Capacity()
		c.machineCPU.value(ch, time.Time{}, capacity.Cpu().AsApproximateFloat64(), nil)
		c.machineMemory.value(ch, time.Time{}, capacity.Memory().AsApproximateFloat64(), nil)
	}
	s, err := c.Summary()
	c.failed.value(ch, time.Time{}, boolValue(err != nil || s.Incomplete != nil), nil)
	if err != nil {
		return
	}
	byUID := map[string]*corev1.Pod{}
	for _, pod := range c.Pods() {
		byUID[string(pod.UID)] = pod
	}
	for i := range s.Pods {
		c.pod(ch, &s.Pods[i], byUID[s.Pods[i].PodRef.UID])
	}
}

// The kubelet's constants for CPU limits, in µs and in shares of a CPU. The kernel takes no smaller quota.
const (
	cpuPeriod            = 100_000
	minQuota             = 1_000
	sharesPerCPU         = 1024
	minShares, maxShares = 2, 262_144
)

func (c *containers) pod(ch chan<- prometheus.Metric, s *stats.PodStats, pod *corev1.Pod) {
	id := "/kubepods/pod" + s.PodRef.UID
	labels := seriesLabels("", id, "", "", s.PodRef)
	c.usage(ch, s.CPU, s.Memory, labels)
	c.swapAndPressure(ch, s.Swap, s.CPU, s.Memory, s.IO, labels)
	c.interfaces(ch, s.Network, labels)
	if s.ProcessStats != nil {
		c.processes.known(ch, time.Time{}, s.ProcessStats.ProcessCount, labels)
		c.threads.known(ch, time.Time{}, s.ProcessStats.ProcessCount, labels)
	}
	for i := range s.Containers {
		container := &s.Containers[i]
		image, containerID := running(pod, container.Name)
		labels := seriesLabels(container.Name, id+"/"+containerID, image, containerID, s.PodRef)
		c.usage(ch, container.CPU, container.Memory, labels)
		c.swapAndPressure(ch, container.Swap, container.CPU, container.Memory, container.IO, labels)
		if start := container.StartTime; start.Unix() > 0 {
			c.start.value(ch, time.Time{}, float64(start.UnixNano())/float64(time.Second), labels)
		}
		if fs := container.Rootfs; fs != nil {
			c.fs.known(ch, fs.Time.Time, fs.UsedBytes, labels.with("device", ""))
		}
		c.blockIO(ch, container.BlockIO, labels)
		c.spec(ch, specOf(pod, container.Name), container.CPU, labels)
	}
}

func (c *containers) usage(ch chan<- prometheus.Metric, cpu *stats.CPUStats, memory *stats.MemoryStats, labels labelSet) {
	if cpu != nil {
		c.cpu.nanoseconds(ch, cpu.Time.Time, cpu.UsageCoreNanoSeconds, labels.with("cpu", "total"))
		if t := cpu.Throttling; t != nil && t.Quota > 0 {
			c.quota(ch, float64(t.Quota.Microseconds()), float64(t.Period.Microseconds()), labels)
			c.periods.value(ch, t.Time.Time, float64(t.Periods), labels)
			c.throttledPeriods.value(ch, t.Time.Time, float64(t.ThrottledPeriods), labels)
			c.throttled.nanoseconds(ch, t.Time.Time, &t.ThrottledNanoSeconds, labels)
		}
	}
	if memory == nil {
		return
	}
	at := memory.Time.Time
	c.memoryUsage.known(ch, at, memory.UsageBytes, labels)
	c.memorySet.known(ch, at, memory.WorkingSetBytes, labels)
	c.memoryRSS.known(ch, at, memory.RSSBytes, labels)
	c.memoryCache.known(ch, at, memory.CacheBytes, labels)
	c.memoryFailures.known(ch, at, memory.PageFaults, labels.with("failure_type", "pgfault", "scope", "container"))
	c.memoryFailures.known(ch, at, memory.MajorPageFaults, labels.with("failure_type", "pgmajfault", "scope", "container"))
}

func (c *containers) blockIO(ch chan<- prometheus.Metric, io *stats.BlockIOStats, labels labelSet) {
	if io == nil {
		return
	}
	for _, d := range io.Devices {
		all, at := labels.with("device", d.Device), io.Time.Time
		c.reads.value(ch, at, float64(d.Reads), all)
		c.writes.value(ch, at, float64(d.Writes), all)
		c.bytesRead.value(ch, at, float64(d.BytesRead), all)
		c.bytesWritten.value(ch, at, float64(d.BytesWritten), all)
	}
}

// spec sends the resources of the spec. A CPU limit need not be enforced: the quota of the cgroup counts, where that is known.
func (c *containers) spec(ch chan<- prometheus.Metric, r *corev1.ResourceRequirements, cpu *stats.CPUStats, labels labelSet) {
	if r == nil {
		return
	}
	var now time.Time
	if limit := r.Limits.Cpu(); !limit.IsZero() && (cpu == nil || cpu.Throttling == nil) {
		c.quota(ch, max(minQuota, float64(limit.MilliValue())*cpuPeriod/1000), cpuPeriod, labels)
	}
	shares := min(float64(r.Requests.Cpu().MilliValue())*sharesPerCPU/1000, maxShares)
	c.cpuShares.value(ch, now, max(minShares, math.Floor(shares)), labels)
	c.memoryLimit.value(ch, now, float64(r.Limits.Memory().Value()), labels)
}

// quota sends the quota of a container and its period, in µs.
func (c *containers) quota(ch chan<- prometheus.Metric, quota, period float64, labels labelSet) {
	c.cpuQuota.value(ch, time.Time{}, quota, labels)
	c.cpuPeriod.value(ch, time.Time{}, period, labels)
}

// seriesLabels returns the labels that all series of a pod or of a container have.
func seriesLabels(container, id, image, name string, pod stats.PodReference) labelSet {
	return newLabels("container", container, "id", id, "image", image, "name", name, "namespace", pod.Namespace, "pod", pod.Name)
}

// running returns the image and the id of a container from the status of its pod.
func running(pod *corev1.Pod, name string) (image, id string) {
	if pod == nil {
		return "", ""
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				_, id, _ := strings.Cut(list[i].ContainerID, "://")
				return list[i].Image, id
			}
		}
	}
	return "", ""
}

// specOf returns the resources of a container, nil if it is unknown or ephemeral.
func specOf(pod *corev1.Pod, name string) *corev1.ResourceRequirements {
	if pod == nil {
		return nil
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i].Resources
			}
		}
	}
	return nil
}
