package volume

import (
	"log/slog"
	"time"

	"github.com/sublet-dev/agent/internal/safe"
)

// Operation is something that was done with one volume.
type Operation struct {
	Name OperationName
	Kind Kind
}

// OperationName is what was done with a volume.
type OperationName string

// The operations, by the kubelet's names.
const (
	OperationMount         OperationName = "volume_mount"
	OperationUnmount       OperationName = "volume_unmount"
	OperationMap           OperationName = "map_volume" // of a block device
	OperationUnmap         OperationName = "unmap_volume"
	OperationUnmountDevice OperationName = "unmount_device" // a volume that was staged for the node
	OperationUnmapDevice   OperationName = "unmap_device"
	OperationResize        OperationName = "volume_fs_resize" // of a volume in use
	OperationApplyGroup    OperationName = "volume_apply_access_control"
)

// Kind is a kind of volumes.
type Kind struct {
	// Plugin is the kubelet's name for it, such as kubernetes.io/secret.
	Plugin string
	// Driver is the CSI driver of a volume of PluginCSI, as the pod or the PersistentVolume names it: there may be none.
	Driver string
}

// PluginCSI is the Plugin of volumes of CSI drivers.
const PluginCSI = "kubernetes.io/csi"

// Hooks observe a Manager or an NFS. Each may be nil and must not block.
type Hooks struct {
	// OperationEnded is called when a volume was mounted or unmounted, or could not be. A volume that is mounted counts again
	// if it fails, and if its files are brought up to date: as with the kubelet, those of ConfigMaps, Secrets, downwardAPI and
	// projected volumes at each Mount. The volumes that this package mounts are unmounted together, each in the time of all.
	// Drivers report themselves what else they do: only Mount is reported for them.
	OperationEnded func(op Operation, duration time.Duration, err error)
	// Mounted is called when a volume is mounted for a pod for the first time in this process, with the time since Mount was
	// first called for it.
	Mounted func(kind Kind, duration time.Duration)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		OperationEnded: safe.Hook3(log, "Volumes.OperationEnded", h.OperationEnded, next.OperationEnded),
		Mounted:        safe.Hook2(log, "Volumes.Mounted", h.Mounted, next.Mounted),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{OperationEnded: safe.Hook3(log, "OperationEnded", h.OperationEnded), Mounted: safe.Hook2(log, "Mounted", h.Mounted)}
}

// ended calls the hook for an operation that began at startTime.
func (h *Hooks) ended(op Operation, startTime time.Time, err error) {
	if h.OperationEnded != nil {
		h.OperationEnded(op, time.Since(startTime), err)
	}
}
