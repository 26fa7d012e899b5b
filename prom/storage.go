package prom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sublet-dev/agent/volume"
)

// storageMetrics are about what was done with volumes.
type storageMetrics struct {
	operations, mounts, calls *prometheus.HistogramVec

	drivers *labelValues // CSI drivers that were called
}

func newStorage() storageMetrics {
	storage := buckets{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600} // those of the kubelet
	return storageMetrics{
		operations: histograms("storage_operation_duration_seconds", "Duration of operations on volumes, by plugin, operation and status: success or fail-unknown.",
			storage, "volume_plugin", "operation_name", "status", "migrated"),
		mounts: histograms("volume_operation_total_seconds", "Time from when a volume was first to be mounted to when it was, waits and failed attempts included.",
			storage, "plugin_name", "operation_name"),
		calls: histograms("csi_operations_seconds", "Duration of calls of CSI drivers, by driver, method and gRPC status.",
			storage, "driver_name", "method_name", "grpc_status_code", "migrated"),
		drivers: newLabelValues(),
	}
}

func (s *storageMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{s.operations, s.mounts, s.calls}
}

// isMigrated is the label of volumes of a plugin that is in the kubelet no more, which a CSI driver mounts. There are none here.
const isMigrated = "false"

// Volumes returns the hooks of a volume.Manager and a volume.NFS.
func (m *Metrics) Volumes() volume.Hooks {
	return volume.Hooks{
		OperationEnded: m.StorageOperationEnded,
		Mounted: func(kind volume.Kind, duration time.Duration) {
			m.storage.mounts.WithLabelValues(m.plugin(kind), "overall_volume_mount").Observe(duration.Seconds())
		},
	}
}

// StorageOperationEnded is the hook for csi.Hooks.OperationEnded.
func (m *Metrics) StorageOperationEnded(op volume.Operation, duration time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	m.storage.operations.WithLabelValues(m.plugin(op.Kind), string(op.Name), status, isMigrated).Observe(duration.Seconds())
}

// CSICallEnded is the hook for csi.Hooks.RPCEnded.
func (m *Metrics) CSICallEnded(driver, method, code string, duration time.Duration) {
	m.storage.calls.WithLabelValues(m.storage.drivers.add(driver), method, grpcCode(code), isMigrated).Observe(duration.Seconds())
}

// plugin returns the label of a kind of volumes. As in a kubelet, each CSI driver has its own. A pod may name any, and each would
// be a series: those that were never called have none.
func (m *Metrics) plugin(kind volume.Kind) string {
	if kind.Driver == "" || !m.storage.drivers.has(kind.Driver) {
		return kind.Plugin
	}
	return kind.Plugin + ":" + kind.Driver
}
