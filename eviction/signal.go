package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Signal is the name of a measurement that a threshold refers to.
type Signal string

// Signals of available resources. Their thresholds are met when less than the value is
// available.
const (
	MemoryAvailable            Signal = "memory.available"
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	NodeFSAvailable            Signal = "nodefs.available"
	NodeFSInodesFree           Signal = "nodefs.inodesFree"
	ImageFSAvailable           Signal = "imagefs.available"
	ImageFSInodesFree          Signal = "imagefs.inodesFree"
	ContainerFSAvailable       Signal = "containerfs.available"
	ContainerFSInodesFree      Signal = "containerfs.inodesFree"
	PIDAvailable               Signal = "pid.available"
)

// Signals of pressure: the percentage of the last ten seconds in which some or all
// tasks waited. Their thresholds are met when the percentage exceeds the value.
const (
	MemoryPSISome Signal = "memory.psi.some.avg10"
	MemoryPSIFull Signal = "memory.psi.full.avg10"
	IOPSISome     Signal = "io.psi.some.avg10"
	IOPSIFull     Signal = "io.psi.full.avg10"
	CPUPSISome    Signal = "cpu.psi.some.avg10"
	CPUPSIFull    Signal = "cpu.psi.full.avg10"
)

// Signals of local storage limits, as the kubelet names them in its metrics. They are those of
// evictions for such a limit, and have no thresholds.
const (
	EmptyDirFSLimit           Signal = "emptydirfs.limit"           // the sizeLimit of an emptyDir
	EphemeralContainerFSLimit Signal = "ephemeralcontainerfs.limit" // the limit of a container
	EphemeralPodFSLimit       Signal = "ephemeralpodfs.limit"       // the limits of all containers together
)

// IsLocalStorageLimit reports whether s is the signal of a local storage limit.
func (s Signal) IsLocalStorageLimit() bool {
	return s == EmptyDirFSLimit || s == EphemeralContainerFSLimit || s == EphemeralPodFSLimit
}

// Signals returns all signals that can have thresholds, in the order in which their thresholds are handled when
// several are met: memory first, because a lack of it causes OOM kills.
func Signals() []Signal {
	return []Signal{
		MemoryAvailable, AllocatableMemoryAvailable, MemoryPSIFull, MemoryPSISome,
		NodeFSAvailable, NodeFSInodesFree, ImageFSAvailable, ImageFSInodesFree,
		ContainerFSAvailable, ContainerFSInodesFree, PIDAvailable,
		IOPSIFull, IOPSISome, CPUPSIFull, CPUPSISome,
	}
}

// Names of resources in messages that are not in the Kubernetes API.
const (
	resourceInodes corev1.ResourceName = "inodes"
	resourcePids   corev1.ResourceName = "pids"
)

// signalInfo contains the constant properties of a signal.
type signalInfo struct {
	resource  corev1.ResourceName
	condition corev1.NodeConditionType // "" for none
	pressure  bool                     // thresholds are met above the value
	disk      bool                     // reclaiming images and containers can help
	read      func(u *runtime.NodeUsage) (available, capacity uint64, at time.Time)
	// podStall returns the pressure of one pod. It is nil if pods are not ranked by it.
	podStall func(u *runtime.PodUsage) (runtime.PSIData, time.Time)
	stall    func(u *runtime.NodeUsage) (runtime.PSIData, time.Time)
}

// infoFor returns the properties of a signal. ok is false for an unknown one.
func infoFor(s Signal) (f signalInfo, ok bool) {
	memory := signalInfo{resource: corev1.ResourceMemory, condition: corev1.NodeMemoryPressure}
	disk := signalInfo{resource: corev1.ResourceEphemeralStorage, condition: corev1.NodeDiskPressure, disk: true}
	inodes := signalInfo{resource: resourceInodes, condition: corev1.NodeDiskPressure, disk: true}
	switch s {
	case MemoryAvailable:
		memory.read = func(u *runtime.NodeUsage) (uint64, uint64, time.Time) { return ofMemory(u.Memory) }
		return memory, true
	case AllocatableMemoryAvailable:
		memory.read = func(u *runtime.NodeUsage) (uint64, uint64, time.Time) { return ofMemory(u.PodsMemory) }
		return memory, true
	case NodeFSAvailable:
		disk.read = func(u *runtime.NodeUsage) (uint64, uint64, time.Time) { return ofBytes(u.NodeFS) }
		return disk, true
	case ImageFSAvailable:
		disk.read = func(u *runtime.NodeUsage) (uint64, uint64, time.Time) { return ofBytes(u.ImageFS) }
		return disk, true
	case ContainerFSAvailable:
		disk.read = func(u *runtime.NodeUsage) (uint64, uint64, time.Time) { return ofBytes(u.ContainerFS) }
		return disk, true
	case NodeFSInodesFree:
		inodes.read = func(u *runtime.NodeUsage) (uint64, uint64, time.Time) { return ofInodes(u.NodeFS) }
		return inodes, true
	case ImageFSInodesFree:
		inodes.read = func(u *runtime.NodeUsage) (uint64, uint64, time.Time) { return ofInodes(u.ImageFS) }
		return inodes, true
	case ContainerFSInodesFree:
		inodes.read = func(u *runtime.NodeUsage) (uint64, uint64, time.Time) { return ofInodes(u.ContainerFS) }
		return inodes, true
	case PIDAvailable:
		return signalInfo{
			resource: resourcePids, condition: corev1.NodePIDPressure,
			read: func(u *runtime.NodeUsage) (uint64, uint64, time.Time) {
				return u.Pids.Max - min(u.Pids.Used, u.Pids.Max), u.Pids.Max, u.Pids.At
			},
		}, true
	default:
		return pressureInfo(s)
	}
}

func pressureInfo(s Signal) (signalInfo, bool) {
	memory := signalInfo{resource: corev1.ResourceMemory, condition: corev1.NodeMemoryPressure, pressure: true}
	io := signalInfo{resource: corev1.ResourceEphemeralStorage, condition: corev1.NodeDiskPressure, pressure: true}
	cpu := signalInfo{resource: corev1.ResourceCPU, pressure: true} // it has no node condition
	switch s {
	case MemoryPSISome:
		memory.podStall = func(u *runtime.PodUsage) (runtime.PSIData, time.Time) {
			return u.MemoryPressure.Some, u.MemoryPressure.At
		}
		memory.stall = func(u *runtime.NodeUsage) (runtime.PSIData, time.Time) {
			return u.MemoryPressure.Some, u.MemoryPressure.At
		}
		return memory, true
	case MemoryPSIFull:
		memory.podStall = func(u *runtime.PodUsage) (runtime.PSIData, time.Time) {
			return u.MemoryPressure.Full, u.MemoryPressure.At
		}
		memory.stall = func(u *runtime.NodeUsage) (runtime.PSIData, time.Time) {
			return u.MemoryPressure.Full, u.MemoryPressure.At
		}
		return memory, true
	case IOPSISome:
		io.podStall = func(u *runtime.PodUsage) (runtime.PSIData, time.Time) {
			return u.IOPressure.Some, u.IOPressure.At
		}
		io.stall = func(u *runtime.NodeUsage) (runtime.PSIData, time.Time) { return u.IOPressure.Some, u.IOPressure.At }
		return io, true
	case IOPSIFull:
		io.podStall = func(u *runtime.PodUsage) (runtime.PSIData, time.Time) {
			return u.IOPressure.Full, u.IOPressure.At
		}
		io.stall = func(u *runtime.NodeUsage) (runtime.PSIData, time.Time) { return u.IOPressure.Full, u.IOPressure.At }
		return io, true
	case CPUPSISome:
		cpu.stall = func(u *runtime.NodeUsage) (runtime.PSIData, time.Time) { return u.CPUPressure.Some, u.CPUPressure.At }
		return cpu, true
	case CPUPSIFull:
		cpu.stall = func(u *runtime.NodeUsage) (runtime.PSIData, time.Time) { return u.CPUPressure.Full, u.CPUPressure.At }
		return cpu, true
	default:
		return signalInfo{}, false
	}
}

// isDisk reports whether a signal is about a file system.
func isDisk(s Signal) bool {
	f, _ := infoFor(s)
	return f.disk
}

// ofMemory returns no measurement if the capacity is unknown.
func ofMemory(m runtime.MemoryUsage) (available, capacity uint64, at time.Time) {
	if m.Capacity == 0 {
		return 0, 0, time.Time{}
	}
	return m.Available(), m.Capacity, m.At
}

func ofBytes(f runtime.FSUsage) (available, capacity uint64, at time.Time) {
	if f.CapacityBytes == 0 {
		return 0, 0, time.Time{}
	}
	return f.AvailableBytes, f.CapacityBytes, f.At
}

// ofInodes returns no measurement for file systems without an inode limit.
func ofInodes(f runtime.FSUsage) (available, capacity uint64, at time.Time) {
	if f.Inodes == 0 {
		return 0, 0, time.Time{}
	}
	return f.Inodes - min(f.InodesUsed, f.Inodes), f.Inodes, f.At
}
