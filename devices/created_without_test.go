package devices_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/topology"
)

// A pod that arrives after a restart of the agent waits for the plugin, also if no pod had a device
// before.
func TestUpdate_StoresTheResource(t *testing.T) {
	file := stateFile(t)
	require.NoError(t, newManager(t, file).Update(gpu, &fake{}, healthy("a")))
	m := newManager(t, file)
	p := pod("p", container("c", 1))
	_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
	require.ErrorIs(t, err, devices.ErrNoPlugin)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	require.Equal(t, "a", inject(t, m, p))
}

// A plugin is not rejected for the disk's sake.
func TestUpdate_StoresTheResourceLater(t *testing.T) {
	file := filepath.Join(t.TempDir(), "missing", "devices.json")
	log := new(logtest.Buffer)
	m := newManager(t, file, func(cfg *devices.Config) { cfg.Logger = logtest.NewLogger(log, slog.LevelInfo) })
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	require.Contains(t, log.String(), `level=WARN msg="resource not stored" resource=vendor.example/gpu err="devices: store allocations: `)
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a", "b")))
	require.FileExists(t, file)
	require.NoError(t, os.Remove(file))
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	require.NoFileExists(t, file, "it is stored once")
}

// injectInto returns what the first container of a pod gets.
func injectInto(t *testing.T, m *devices.Manager, p *corev1.Pod, running bool) (string, error) {
	t.Helper()
	injection, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], running)
	return injection.Env["GPUS"], err
}

// A container that was created when no plugin had ever provided its resource has no device for as
// long as it runs, whether the plugin comes or the agent is restarted, and keeps no other pod waiting.
func TestInject_ContainersCreatedWithoutDevices(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file, withNodes)
	without, other := pod("without", container("c", 1)), pod("other", container("c", 1))
	require.Empty(t, inject(t, m, without))
	requireNone := func() {
		t.Helper()
		require.NoError(t, m.Reserve(without, &without.Spec.Containers[0], topology.NewSet(0)))
		got, err := injectInto(t, m, without, true)
		require.NoError(t, err)
		require.Empty(t, got)
		require.NoError(t, m.PreStart(t.Context(), without, "c"))
		require.Empty(t, m.Allocations(without.UID))
		require.Empty(t, m.ResourceStatuses(without.UID, "c"))
		uids, err := m.PodUIDs()
		require.NoError(t, err)
		require.Contains(t, uids, without.UID, "it is to be released")
	}
	requireNone()
	m = newManager(t, file, withNodes)
	requireNone()
	plugin := &starter{}
	require.NoError(t, m.Update(gpu, plugin, near("a")[:1]))
	requireNone()

	m = newManager(t, file, withNodes)
	requireNone()
	require.NoError(t, m.Update(gpu, plugin, near("a")[:1]))
	requireNone()
	require.Empty(t, plugin.started)
	capacity, allocatable := m.Capacity()[gpu], m.Allocatable()[gpu]
	require.Equal(t, []int64{1, 1}, []int64{capacity.Value(), allocatable.Value()})
	require.Equal(t, "a0", inject(t, m, other))

	_, err := injectInto(t, m, without, false)
	require.ErrorIs(t, err, devices.ErrNotEnough, "created again it is not started without a device")
	require.NoError(t, m.Release(t.Context(), other.UID))
	plugin.err = errors.New("busy")
	require.Equal(t, "a0", inject(t, m, without))
	require.ErrorContains(t, m.PreStart(t.Context(), without, "c"), "busy")
	m = newManager(t, file, withNodes)
	got, err := injectInto(t, m, without, true)
	require.NoError(t, err)
	require.Equal(t, "a0", got, "it was stored")
	require.NoError(t, m.Release(t.Context(), without.UID))
	uids, err := newManager(t, file).PodUIDs()
	require.NoError(t, err)
	require.Empty(t, uids)
}

// What an init container was created without is not reused, and no reason to wait.
func TestInject_InitContainersCreatedWithoutDevices(t *testing.T) {
	m := newManager(t, stateFile(t))
	p := pod("p", container("app", 1))
	p.Spec.InitContainers = []corev1.Container{container("init", 2)}
	injection, err := m.Inject(t.Context(), p, &p.Spec.InitContainers[0], false)
	require.NoError(t, err)
	require.True(t, injection.IsZero())
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	require.Equal(t, "a", inject(t, m, p))
}

// A container that runs, and of which nothing is known, may have a device of a resource that is
// known.
func TestInject_ContainersWithoutARecordAreUnknown(t *testing.T) {
	m := newManager(t, stateFile(t))
	adopted, other := pod("adopted", container("c", 1)), pod("other", container("c", 1))
	got, err := injectInto(t, m, adopted, true)
	require.NoError(t, err)
	require.Empty(t, got)
	uids, err := m.PodUIDs()
	require.NoError(t, err)
	require.Equal(t, []types.UID(nil), uids)
	require.NoError(t, m.Update(gpu, &fake{}, healthy("a")))
	_, err = injectInto(t, m, adopted, true)
	require.ErrorIs(t, err, devices.ErrStateLost)
	_, err = injectInto(t, m, other, false)
	require.ErrorIs(t, err, devices.ErrStateLost)
}
