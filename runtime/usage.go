package runtime

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// NodeUsage is a measurement of a node and its pods. Each value has the time of its
// measurement; a value with a zero time is unknown. It is read-only once passed on.
type NodeUsage struct {
	Memory MemoryUsage // of the machine, or of the cgroup whose limits are those of the node
	// PodsMemory is the memory of the cgroup of all pods, with its limit as capacity.
	PodsMemory MemoryUsage
	CPU        CPUUsage
	Pids       PidUsage

	NodeFS      FSUsage // of pod directories, logs and local volumes
	ImageFS     FSUsage // of images
	ContainerFS FSUsage // of containers' writable layers

	MemoryPressure, IOPressure, CPUPressure PSIStats

	// Swap is that of the machine, or of the cgroup whose limit on swap is that of the node.
	// Network is that of the machine. A stats.Provider measures both for a Summary only.
	Swap    SwapUsage
	Network NetworkUsage

	Pods []PodUsage
}

// MemoryUsage is a measurement of memory in bytes. A zero At means that it is unknown.
type MemoryUsage struct {
	At       time.Time
	Capacity uint64 // zero: unlimited or unknown
	Usage    uint64 // including the page cache
	// WorkingSet is memory that cannot be reclaimed immediately: Usage without the
	// inactive part of the page cache.
	WorkingSet              uint64
	RSS                     uint64
	PageFaults, MajorFaults uint64
	// Cache is the page cache in Usage. A runtime does not report it.
	Cache    uint64
	HasCache bool // Cache is known
}

// Available returns Capacity without WorkingSet, as the signal memory.available is defined.
func (m MemoryUsage) Available() uint64 { return m.Capacity - min(m.WorkingSet, m.Capacity) }

// SwapUsage is a measurement of swap space in bytes. A zero At means that it is unknown.
type SwapUsage struct {
	At    time.Time
	Usage uint64
	// Limit is the size of the swap space that may be used, memory.swap.max on cgroup v2. On
	// v1 it is that of memory and swap together, memory.memsw.limit_in_bytes, as the kubelet
	// has it.
	Limit    uint64
	HasLimit bool // Limit is known, and there is one
}

// Available returns Limit without Usage, as the kubelet defines swapAvailableBytes.
func (s SwapUsage) Available() uint64 { return s.Limit - min(s.Usage, s.Limit) }

// NetworkUsage is a measurement of the interfaces of a network namespace, without those that
// cAdvisor leaves out. A zero At means that it is unknown.
type NetworkUsage struct {
	At         time.Time
	Interfaces []InterfaceUsage
}

// InterfaceUsage has the counters of a network interface since it was created.
type InterfaceUsage struct {
	Name string // of printable characters, and unique in its namespace

	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// CPUUsage is a measurement of CPU time. A zero At means that it is unknown.
type CPUUsage struct {
	At                   time.Time
	UsageCoreNanoSeconds uint64 // consumed so far
	UsageNanoCores       uint64 // nanoseconds per second, since the previous measurement
	HasRate              bool   // UsageNanoCores is known
}

// ThrottlingUsage is a measurement of a CPU quota, and of how it has kept tasks from running. A zero At means that it is unknown.
type ThrottlingUsage struct {
	At                        time.Time
	Quota, Period             time.Duration // CPU time that may be used in each period; 0: any, and nothing else is known
	Periods, ThrottledPeriods uint64        // in which there were tasks to run; of these those in which they had to wait
	ThrottledNanoSeconds      uint64        // for which they had to wait
}

// BlockIOUsage is a measurement of what was read from disks and written to them. A zero At means that it is unknown.
type BlockIOUsage struct {
	At      time.Time
	Devices []BlockDeviceUsage
}

// BlockDeviceUsage has the counters of one block device.
type BlockDeviceUsage struct {
	Device                                 string // such as /dev/sda; its number, such as 8:0, if it has no name
	Reads, Writes, BytesRead, BytesWritten uint64
}

// PidUsage is a number of tasks and its maximum. A zero At means that it is unknown.
type PidUsage struct {
	At        time.Time
	Max, Used uint64
}

// DiskUsage is the usage of a file system by some files. A zero At means that it is unknown.
type DiskUsage struct {
	At            time.Time
	Bytes, Inodes uint64
	// Partial means that the first measurement is not complete: the values are lower
	// bounds.
	Partial bool
}

// Add returns the sum, with the older At. The sum of an unknown value is unknown, and that of
// a partial one is partial.
func (d DiskUsage) Add(o DiskUsage) DiskUsage {
	out := DiskUsage{At: d.At, Bytes: d.Bytes + o.Bytes, Inodes: d.Inodes + o.Inodes, Partial: d.Partial || o.Partial}
	if o.At.Before(d.At) {
		out.At = o.At
	}
	return out
}

// PSIStats is a measurement of the kernel's pressure stall information: the share of time in
// which some or all tasks waited for a resource. A zero At means that it is unknown.
type PSIStats struct {
	At         time.Time
	Some, Full PSIData
}

// PSIData is one line of pressure stall information.
type PSIData struct {
	Avg10, Avg60, Avg300 float64 // percent of the last 10, 60 and 300 seconds
	Total                uint64  // µs since boot
}

// PodUsage is the resource usage of one pod.
type PodUsage struct {
	UID             types.UID
	Namespace, Name string

	Memory     MemoryUsage
	CPU        CPUUsage
	Pids       PidUsage
	Containers []ContainerUsage
	// MemoryPressure, IOPressure and CPUPressure are those of the pod's own tasks. They are
	// known on cgroup v2 only. For eviction, a stats.Provider does not measure CPUPressure, and
	// the others only while tasks on the node wait.
	MemoryPressure, IOPressure, CPUPressure PSIStats
	// Swap and Network are measured by a stats.Provider for a Summary only. A pod on the
	// network of the host has no Network.
	Swap    SwapUsage
	Network NetworkUsage
	// Volumes are the volumes with files of the node's, by their names in the spec.
	Volumes map[string]VolumeUsage
	// ExitedContainers is the usage of the writable layers of exited containers.
	ExitedContainers DiskUsage
	// Files is the usage of the other files that the containers can write to: the hosts file
	// and the termination messages.
	Files DiskUsage
}

// VolumeUsage is the usage of a volume.
type VolumeUsage struct {
	DiskUsage
	// Uncounted volumes do not count as ephemeral storage of the pod: an emptyDir in memory,
	// a Secret, downwardAPI or projected volume.
	Uncounted bool
}

// ContainerUsage is the resource usage of one container.
type ContainerUsage struct {
	PodUID  types.UID
	ID      string
	Name    string
	Running bool

	Memory MemoryUsage
	CPU    CPUUsage
	Rootfs DiskUsage // writable layer
	Logs   DiskUsage

	// Swap and the pressures are those that the runtime reports. A stats.Provider reads those of
	// others from the cgroup of the container, for a Summary only.
	Swap                                    SwapUsage
	MemoryPressure, IOPressure, CPUPressure PSIStats
	// Throttling and BlockIO are known on cgroup v2 only. A stats.Provider measures them for a Summary only.
	Throttling ThrottlingUsage
	BlockIO    BlockIOUsage
}
