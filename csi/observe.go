package csi

import (
	"context"
	"time"

	"github.com/sublet-dev/agent/volume"
)

// ended calls the hook for an operation on a volume that began at startTime, unless it failed because ctx is done.
func (m *Manager) ended(ctx context.Context, name volume.OperationName, id *volumeID, startTime time.Time, err error) {
	if m.cfg.Hooks.OperationEnded == nil || err != nil && ctx.Err() != nil {
		return
	}
	if id.block {
		switch name {
		case volume.OperationUnmount:
			name = volume.OperationUnmap
		case volume.OperationUnmountDevice:
			name = volume.OperationUnmapDevice
		default:
		}
	}
	m.cfg.Hooks.OperationEnded(volume.Operation{Name: name, Kind: volume.Kind{Plugin: volume.PluginCSI, Driver: id.driver}}, time.Since(startTime), err)
}
