package stats

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Summary has the JSON form of the kubelet's endpoint /stats/summary
// (k8s.io/kubelet/pkg/apis/stats/v1alpha1), so that tools for that one can read it. Unknown
// values are left out.
type Summary struct {
	Node NodeStats  `json:"node"`
	Pods []PodStats `json:"pods"`

	// Incomplete says why the usage of single containers is not there, because the runtime did
	// not report it; nil if it did.
	Incomplete error `json:"-"`
}

// The parts of a Summary. A nil value is unknown.
type (
	// NodeStats is the usage of the node.
	NodeStats struct {
		NodeName  string        `json:"nodeName"`
		StartTime metav1.Time   `json:"startTime"`
		CPU       *CPUStats     `json:"cpu,omitempty"`
		Memory    *MemoryStats  `json:"memory,omitempty"`
		IO        *IOStats      `json:"io,omitempty"`
		Network   *NetworkStats `json:"network,omitempty"`
		FS        *FSStats      `json:"fs,omitempty"`
		Runtime   *RuntimeStats `json:"runtime,omitempty"`
		Rlimit    *RlimitStats  `json:"rlimit,omitempty"`
		Swap      *SwapStats    `json:"swap,omitempty"`
		// SystemContainers are the cgroups of the agent and of all pods: SystemContainerKubelet
		// and SystemContainerPods. They have no file systems.
		SystemContainers []ContainerStats `json:"systemContainers,omitempty"`
	}
	// RuntimeStats is the usage of the file systems of the container runtime. UsedBytes and
	// InodesUsed are those of its images and layers, not of the file systems.
	RuntimeStats struct {
		ImageFS     *FSStats `json:"imageFs,omitempty"`
		ContainerFS *FSStats `json:"containerFs,omitempty"`
	}
	// RlimitStats is the number of tasks on the node and their maximum.
	RlimitStats struct {
		Time                  metav1.Time `json:"time"`
		MaxPID                *int64      `json:"maxpid,omitempty"`
		NumOfRunningProcesses *int64      `json:"curproc,omitempty"`
	}
	// PodStats is the usage of one pod. A pod on the network of the host has no Network.
	PodStats struct {
		PodRef           PodReference     `json:"podRef"`
		StartTime        metav1.Time      `json:"startTime"`
		Containers       []ContainerStats `json:"containers"`
		CPU              *CPUStats        `json:"cpu,omitempty"`
		Memory           *MemoryStats     `json:"memory,omitempty"`
		IO               *IOStats         `json:"io,omitempty"`
		Network          *NetworkStats    `json:"network,omitempty"`
		VolumeStats      []VolumeStats    `json:"volume,omitempty"`
		EphemeralStorage *FSStats         `json:"ephemeral-storage,omitempty"`
		ProcessStats     *ProcessStats    `json:"process_stats,omitempty"`
		Swap             *SwapStats       `json:"swap,omitempty"`
	}
	// PodReference identifies a pod.
	PodReference struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	}
	// ContainerStats is the usage of one container that runs.
	ContainerStats struct {
		Name      string       `json:"name"`
		StartTime metav1.Time  `json:"startTime"`
		CPU       *CPUStats    `json:"cpu,omitempty"`
		Memory    *MemoryStats `json:"memory,omitempty"`
		IO        *IOStats     `json:"io,omitempty"`
		Rootfs    *FSStats     `json:"rootfs,omitempty"`
		Logs      *FSStats     `json:"logs,omitempty"`
		Swap      *SwapStats   `json:"swap,omitempty"`

		BlockIO *BlockIOStats `json:"-"` // not in the kubelet's form, as it is there for metrics
	}
	// BlockIOStats is what a container has read from disks and written to them.
	BlockIOStats struct {
		Time    metav1.Time
		Devices []BlockDeviceStats
	}
	// BlockDeviceStats has the counters of one block device.
	BlockDeviceStats struct {
		Device                                 string // such as /dev/sda; its number, such as 8:0, if it has no name
		Reads, Writes, BytesRead, BytesWritten uint64
	}
	// CPUStats is the CPU usage: consumed so far, and per second since the previous sample.
	CPUStats struct {
		Time                 metav1.Time `json:"time"`
		UsageNanoCores       *uint64     `json:"usageNanoCores,omitempty"`
		UsageCoreNanoSeconds *uint64     `json:"usageCoreNanoSeconds,omitempty"`
		PSI                  *PSIStats   `json:"psi,omitempty"`

		// Throttling is of a container whose cgroup is known. The kubelet's form has none; it is there for metrics.
		Throttling *ThrottlingStats `json:"-"`
	}
	// ThrottlingStats is the limit on CPU time of a container, and how it has kept tasks from running.
	ThrottlingStats struct {
		Time                 metav1.Time
		Quota, Period        time.Duration // that may be used in each period; 0: any, and all below is 0
		Periods              uint64        // in which there were tasks to run
		ThrottledPeriods     uint64        // of these those in which they had to wait
		ThrottledNanoSeconds uint64
	}
	// MemoryStats is the memory usage in bytes. WorkingSetBytes cannot be reclaimed at once.
	MemoryStats struct {
		Time            metav1.Time `json:"time"`
		AvailableBytes  *uint64     `json:"availableBytes,omitempty"`
		UsageBytes      *uint64     `json:"usageBytes,omitempty"`
		WorkingSetBytes *uint64     `json:"workingSetBytes,omitempty"`
		RSSBytes        *uint64     `json:"rssBytes,omitempty"`
		PageFaults      *uint64     `json:"pageFaults,omitempty"`
		MajorPageFaults *uint64     `json:"majorPageFaults,omitempty"`
		PSI             *PSIStats   `json:"psi,omitempty"`

		CacheBytes *uint64 `json:"-"` // the page cache in UsageBytes; not in the kubelet's form
	}
	// SwapStats is the usage of swap space in bytes. SwapAvailableBytes is the limit without the
	// usage, and unknown without a limit.
	SwapStats struct {
		Time               metav1.Time `json:"time"`
		SwapAvailableBytes *uint64     `json:"swapAvailableBytes,omitempty"`
		SwapUsageBytes     *uint64     `json:"swapUsageBytes,omitempty"`
	}
	// NetworkStats has the interfaces of the node or of a pod, without those that cAdvisor leaves
	// out: lo and those whose names begin with veth, docker or nerdctl. InterfaceStats is that of
	// eth0, if there is one.
	NetworkStats struct {
		Time           metav1.Time `json:"time"`
		InterfaceStats `json:",inline"`
		Interfaces     []InterfaceStats `json:"interfaces,omitempty"`
	}
	// InterfaceStats has the counters of a network interface. The kubelet's form has none of
	// packets; they are there for metrics.
	InterfaceStats struct {
		Name     string  `json:"name"`
		RxBytes  *uint64 `json:"rxBytes,omitempty"`
		RxErrors *uint64 `json:"rxErrors,omitempty"`
		TxBytes  *uint64 `json:"txBytes,omitempty"`
		TxErrors *uint64 `json:"txErrors,omitempty"`

		RxPackets *uint64 `json:"-"`
		RxDropped *uint64 `json:"-"`
		TxPackets *uint64 `json:"-"`
		TxDropped *uint64 `json:"-"`
	}
	// IOStats is the pressure on disks.
	IOStats struct {
		Time metav1.Time `json:"time"`
		PSI  *PSIStats   `json:"psi,omitempty"`
	}
	// PSIStats is the kernel's pressure stall information: of the time in which some or all
	// tasks waited for a resource.
	PSIStats struct {
		Full PSIData `json:"full"`
		Some PSIData `json:"some"`
	}
	// PSIData is one line of pressure stall information. The averages are percentages of the
	// last 10, 60 and 300 seconds, Total is in µs.
	PSIData struct {
		Total  uint64  `json:"total"`
		Avg10  float64 `json:"avg10"`
		Avg60  float64 `json:"avg60"`
		Avg300 float64 `json:"avg300"`
	}
	// FSStats is the usage of a file system, or of some files in it: then UsedBytes and
	// InodesUsed are those of the files and all other values those of the file system.
	FSStats struct {
		Time           metav1.Time `json:"time"`
		AvailableBytes *uint64     `json:"availableBytes,omitempty"`
		CapacityBytes  *uint64     `json:"capacityBytes,omitempty"`
		UsedBytes      *uint64     `json:"usedBytes,omitempty"`
		InodesFree     *uint64     `json:"inodesFree,omitempty"`
		Inodes         *uint64     `json:"inodes,omitempty"`
		InodesUsed     *uint64     `json:"inodesUsed,omitempty"`
	}
	// VolumeStats is the usage of a volume.
	VolumeStats struct {
		FSStats `json:",inline"`
		Name    string        `json:"name"`
		PVCRef  *PVCReference `json:"pvcRef,omitempty"` // of a volume that a driver mounts
	}
	// PVCReference identifies a PersistentVolumeClaim.
	PVCReference struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}
	// ProcessStats is the number of tasks of a pod.
	ProcessStats struct {
		ProcessCount *uint64 `json:"process_count,omitempty"`
	}
)
