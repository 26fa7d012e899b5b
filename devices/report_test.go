package devices_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/internal/logtest"
)

// What running containers have is known from the first question on after a restart.
func TestManager_ReportsStoredAllocations(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, &fake{}, []devices.Device{{ID: "a", Healthy: true, NUMANodes: []int64{1}}, {ID: "b", Healthy: true}}))
	p := pod("p", container("app", 2))
	inject(t, m, p)
	want := []devices.Device{{ID: "a", NUMANodes: []int64{1}}, {ID: "b"}} // where they are does not change while their plugin is away
	require.Equal(t, []devices.Allocation{{Container: "app", Resource: gpu, Devices: want, CDIDevices: []string{"vendor.example/gpu=a"}}},
		newManager(t, file).Allocations(p.UID))
	require.Equal(t, []corev1.ResourceStatus{{Name: gpu, Resources: []corev1.ResourceHealth{
		{ResourceID: "a", Health: corev1.ResourceHealthStatusUnknown}, {ResourceID: "b", Health: corev1.ResourceHealthStatusUnknown},
	}}},
		newManager(t, file).ResourceStatuses(p.UID, "app"))
}

// A file that cannot be read is logged once, and read again with the next question.
func TestManager_ReportsWithoutReadableState(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	p := pod("p", container("app", 1))
	inject(t, m, p)
	require.NoError(t, os.Rename(file, file+".away"))
	require.NoError(t, os.Mkdir(file, 0o700)) // not a file
	var log logtest.Buffer
	m = newManager(t, file, func(cfg *devices.Config) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	require.Empty(t, m.Allocations(p.UID))
	require.Empty(t, m.ResourceStatuses(p.UID, "app"))
	require.Equal(t, 1, strings.Count(log.String(), `level=ERROR msg="device allocations not reported"`), log.String())
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Rename(file+".away", file))
	require.Len(t, m.Allocations(p.UID), 1)
}

// A plugin that registers while the file cannot be read stays: it would not register a second time. Nothing is allocated until then, and
// what was is not overwritten.
func TestManager_KeepsPluginWithoutReadableState(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
	inject(t, m, pod("p", container("app", 1)))
	require.NoError(t, os.Rename(file, file+".away"))
	require.NoError(t, os.Mkdir(file, 0o700)) // not a file
	m = newManager(t, file)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
	q := pod("q", container("app", 1))
	_, err := m.Inject(t.Context(), q, &q.Spec.Containers[0], false)
	require.ErrorContains(t, err, "nothing is allocated until")
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Rename(file+".away", file))
	inject(t, m, q)
	require.Equal(t, "b", m.Allocations(q.UID)[0].Devices[0].ID, "the other one is that of the first pod")
}

// Pods are synced when the status of their devices changes, also that of a device that was unhealthy
// before its plugin went and is so when it is back.
func TestManager_NotifiesOfUnhealthyDevicesWithoutPlugin(t *testing.T) {
	m := newManager(t, stateFile(t))
	plugin := &fake{}
	require.NoError(t, m.Update(gpu, plugin, healthy("a")))
	p := pod("p", container("app", 1))
	inject(t, m, p)
	var reported []corev1.ResourceHealthStatus
	m.NotifyHealth(func(uid types.UID) {
		reported = append(reported, m.ResourceStatuses(uid, "app")[0].Resources[0].Health)
	})
	unhealthy := []devices.Device{{ID: "a"}}
	require.NoError(t, m.Update(gpu, plugin, unhealthy))
	m.Disconnect(gpu, plugin)
	m.Disconnect(gpu, plugin)
	require.NoError(t, m.Update(gpu, plugin, unhealthy))
	require.NoError(t, m.Update(gpu, plugin, nil)) // not listed: the same
	require.Equal(t, []corev1.ResourceHealthStatus{
		corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown, corev1.ResourceHealthStatusUnhealthy,
	}, reported)
}

// A machine is new until a Manager has written its file.
func TestManager_IsNew(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file)
	require.True(t, m.IsNew())
	require.True(t, m.IsNew(), "until the process ends")
	require.False(t, newManager(t, file).IsNew(), "it is stored")

	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	require.False(t, newManager(t, file).IsNew(), "its state was lost")

	file = stateFile(t)
	require.NoError(t, newManager(t, file).Update(gpu, &fake{}, healthy("a")))
	require.False(t, newManager(t, file).IsNew())
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700))
	require.False(t, newManager(t, file).IsNew(), "not known")
}
