package csi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/volume"
)

// observeCalls returns what calls the hook after each call of a driver.
func (m *Manager) observeCalls(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		startTime := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		if m.cfg.Hooks.RPCEnded != nil {
			m.cfg.Hooks.RPCEnded(driver, method, status.Code(err).String(), time.Since(startTime))
		}
		return err
	}
}

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
