package runtime

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// NodeUsage is a measurement of a node and its pods. Each value has the time of its
// measurement; a value with a zero time is unknown. It is read-only once passed on.
type NodeUsage struct {
	Memory MemoryUsage // of the node, or of the group that bounds it
	// PodsMemory is the memory of the group of all pods, with its limit as capacity.
	PodsMemory MemoryUsage
	CPU        CPUUsage
	Pids       PidUsage

	NodeFS      FSUsage // of pod directories, logs and local volumes
	ImageFS     FSUsage // of images
	ContainerFS FSUsage // of containers' writable layers

	MemoryPressure, IOPressure, CPUPressure PSIStats

	Pods []PodUsage
}

// MemoryUsage is a reading of memory, in bytes.
type MemoryUsage struct {
	At       time.Time
	Capacity uint64 // zero: no bound is known
	Usage    uint64 // with the page cache
	// WorkingSet is memory that cannot be reclaimed immediately: Usage without the
	// inactive part of the page cache.
	WorkingSet              uint64
	RSS                     uint64
	PageFaults, MajorFaults uint64
}

// Available is what is left of the capacity.
func (m MemoryUsage) Available() uint64 { return m.Capacity - min(m.WorkingSet, m.Capacity) }

// CPUUsage is a reading of processor time.
type CPUUsage struct {
	At                   time.Time
	UsageCoreNanoSeconds uint64 // consumed so far
	UsageNanoCores       uint64 // nanoseconds a second over a recent while
	HasRate              bool   // UsageNanoCores is known
}

// PidUsage is a reading of process ids.
type PidUsage struct {
	At        time.Time
	Max, Used uint64
}

// DiskUsage is what something takes up on a file system.
type DiskUsage struct {
	At            time.Time
	Bytes, Inodes uint64
	// Partial means that the first measurement is not complete: the values are lower
	// bounds.
	Partial bool
}

// Add returns both together, as old as the older. One that is not known makes
// the sum not known, and one that is partial makes it partial.
func (d DiskUsage) Add(o DiskUsage) DiskUsage {
	out := DiskUsage{At: d.At, Bytes: d.Bytes + o.Bytes, Inodes: d.Inodes + o.Inodes, Partial: d.Partial || o.Partial}
	if o.At.Before(d.At) {
		out.At = o.At
	}
	return out
}

// PSIStats is a reading of the kernel's pressure stall information: the share
// of time, in percent, in which some or all tasks waited for a resource.
type PSIStats struct {
	At         time.Time
	Some, Full PSIData
}

// PSIData is one line of pressure stall information.
type PSIData struct {
	Avg10, Avg60, Avg300 float64 // percent
	Total                uint64  // µs
}

// PodUsage is how much one pod uses.
type PodUsage struct {
	UID             types.UID
	Namespace, Name string

	Memory     MemoryUsage
	CPU        CPUUsage
	Pids       PidUsage
	Containers []ContainerUsage
	// MemoryPressure and IOPressure are of the pod's own tasks: known where its
	// group tells, which takes cgroup v2.
	MemoryPressure, IOPressure PSIStats
	// Volumes are the node-local volumes that count as ephemeral storage, and
	// those in memory, by their names in the spec.
	Volumes map[string]VolumeUsage
	// ExitedContainers is the disk use of the pod's containers that ended.
	ExitedContainers DiskUsage
	// Files are what the node itself keeps for the pod and its containers can write
	// to: the hosts file and the termination messages.
	Files DiskUsage
}

// VolumeUsage is how much a volume takes up.
type VolumeUsage struct {
	DiskUsage
	InMemory bool // an emptyDir of medium Memory
}

// ContainerUsage is how much one container uses.
type ContainerUsage struct {
	PodUID  types.UID
	ID      string
	Name    string
	Running bool

	Memory MemoryUsage
	CPU    CPUUsage
	Rootfs DiskUsage // its writable layer
	Logs   DiskUsage
}
