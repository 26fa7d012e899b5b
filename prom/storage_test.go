package prom_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/volume"
)

// callStorageHooks calls the hooks of what mounts volumes.
func callStorageHooks(m *prom.Metrics) {
	secret, disk := volume.Kind{Plugin: "kubernetes.io/secret"}, volume.Kind{Plugin: volume.PluginCSI, Driver: "disk.example"}
	m.CSICallEnded("disk.example", "/csi.v1.Node/NodePublishVolume", "OK", time.Second)
	h := m.Volumes()
	h.OperationEnded(volume.Operation{Name: volume.OperationMount, Kind: secret}, time.Second, nil)
	h.OperationEnded(volume.Operation{Name: volume.OperationMount, Kind: disk}, time.Second, errors.New("busy"))
	h.Mounted(disk, 3*time.Second)
	m.StorageOperationEnded(volume.Operation{Name: volume.OperationUnmountDevice, Kind: disk}, time.Second, nil)
}

func volumeCounts() map[volume.Kind]volume.Count {
	return map[volume.Kind]volume.Count{
		{Plugin: "kubernetes.io/secret"}:                   {Desired: 2, Mounted: 3},
		{Plugin: volume.PluginCSI, Driver: "disk.example"}: {Desired: 1, Mounted: 1},
		{Plugin: volume.PluginCSI, Driver: "none.example"}: {Desired: 1},
		{Plugin: volume.PluginCSI, Driver: "typo.example"}: {Desired: 1},
	}
}

// AG-5: volumes have the names and labels of a kubelet, whose dashboards read them.
func TestMetrics_Volumes(t *testing.T) {
	m, reg := newMetrics(t)
	require.NoError(t, m.RegisterVolumeCounts(reg, volumeCounts))
	callStorageHooks(m)
	for name, want := range map[string][]string{
		"storage_operation_duration_seconds_count": {
			`storage_operation_duration_seconds_count{migrated="false",operation_name="unmount_device",status="success",volume_plugin="kubernetes.io/csi:disk.example"} 1`,
			`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="fail-unknown",volume_plugin="kubernetes.io/csi:disk.example"} 1`,
			`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="success",volume_plugin="kubernetes.io/secret"} 1`,
		},
		"volume_operation_total_seconds_sum": {
			`volume_operation_total_seconds_sum{operation_name="overall_volume_mount",plugin_name="kubernetes.io/csi:disk.example"} 3`,
		},
		"csi_operations_seconds_count": {
			`csi_operations_seconds_count{driver_name="disk.example",grpc_status_code="OK",method_name="/csi.v1.Node/NodePublishVolume",migrated="false"} 1`,
		},
		"volume_manager_total_volumes": {
			`volume_manager_total_volumes{plugin_name="kubernetes.io/csi",state="actual_state_of_world"} 0`,
			`volume_manager_total_volumes{plugin_name="kubernetes.io/csi",state="desired_state_of_world"} 2`,
			`volume_manager_total_volumes{plugin_name="kubernetes.io/csi:disk.example",state="actual_state_of_world"} 1`,
			`volume_manager_total_volumes{plugin_name="kubernetes.io/csi:disk.example",state="desired_state_of_world"} 1`,
			`volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="actual_state_of_world"} 3`,
			`volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="desired_state_of_world"} 2`,
		},
	} {
		assert.ElementsMatch(t, want, series(t, reg, name))
	}
	require.Error(t, m.RegisterVolumeCounts(reg, volumeCounts), "they are registered")
	require.Error(t, m.RegisterVolumeCounts(nil, volumeCounts))
	require.Error(t, m.RegisterVolumeCounts(reg, nil))
}

// AG-5: neither pods nor plugins make series without end: a pod may name any CSI driver, and a plugin call itself by any name and
// answer with any status code.
func TestMetrics_BoundLabels(t *testing.T) {
	m, reg := newMetrics(t)
	for i := range 1000 {
		name := fmt.Sprintf("driver-%d.example", i)
		m.Volumes().OperationEnded(volume.Operation{Name: volume.OperationMount, Kind: volume.Kind{Plugin: volume.PluginCSI, Driver: name}}, time.Second, errors.New("not registered"))
		m.CSICallEnded("one.example", "/csi.v1.Identity/GetPluginInfo", fmt.Sprintf("Code(%d)", 100+i), time.Second)
		m.DRACallEnded("one.example", "/v1.DRAPlugin/NodePrepareResources", fmt.Sprintf("Code(%d)", 100+i), time.Second)
	}
	assert.Equal(t, []string{
		`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="fail-unknown",volume_plugin="kubernetes.io/csi"} 1000`,
	}, series(t, reg, "storage_operation_duration_seconds_count"))
	assert.Equal(t, []string{
		`csi_operations_seconds_count{driver_name="one.example",grpc_status_code="Unknown",method_name="/csi.v1.Identity/GetPluginInfo",migrated="false"} 1000`,
	}, series(t, reg, "csi_operations_seconds_count"))
	assert.Len(t, series(t, reg, "dra_grpc_operations_duration_seconds_count"), 1)
	for i := range 1000 {
		name := fmt.Sprintf("driver-%d.example", i)
		m.CSICallEnded(name, "/csi.v1.Identity/GetPluginInfo", "OK", time.Second)
		m.DRACallEnded(name, "/v1.DRAPlugin/NodePrepareResources", "OK", time.Second)
		m.DevicePluginRegistered(corev1.ResourceName(name + "/gpu"))
	}
	assert.Less(t, len(series(t, reg, "csi_operations_seconds_count")), 110)
	assert.Less(t, len(series(t, reg, "kubelet_device_plugin_registration_total")), 110)
	assert.Less(t, len(series(t, reg, "dra_grpc_operations_duration_seconds_count")), 110)
}

// registerAll registers what New does not.
func registerAll(t *testing.T, m *prom.Metrics, reg prometheus.Registerer, p *corev1.Pod) {
	t.Helper()
	require.NoError(t, prom.RegisterPods(reg, func() []*corev1.Pod { return []*corev1.Pod{p} }))
	require.NoError(t, prom.RegisterProblems(reg, prom.Problems{RejectedPods: func() int { return 0 }}))
	require.NoError(t, prom.RegisterNode(reg, newNode()))
	require.NoError(t, m.RegisterVolumeCounts(reg, volumeCounts))
}
