package cgroup

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
)

// fakeSystemd creates directories as systemd does and fails on demand.
type fakeSystemd struct {
	root  string
	calls []string
	limit map[string]limits
	err   error
}

func (f *fakeSystemd) start(_ context.Context, unit string, l limits) error {
	f.calls = append(f.calls, "start "+unit)
	f.limit[unit] = l
	return f.err
}

func (f *fakeSystemd) stop(_ context.Context, unit string) error {
	f.calls = append(f.calls, "stop "+unit)
	return f.err
}

func newSystemdManager(t *testing.T, cfg Config) (*Manager, *fakeSystemd) {
	t.Helper()
	cfg.Root = t.TempDir()
	for _, dir := range []string{"", "kubepods.slice", "kubepods.slice/kubepods-podu1.slice", "kubepods.slice/kubepods-besteffort.slice", "kubepods.slice/kubepods-burstable.slice"} {
		require.NoError(t, os.MkdirAll(filepath.Join(cfg.Root, dir), 0o700))
		for _, f := range []string{"cgroup.subtree_control", "cpu.max", "cpu.weight", "memory.min", "memory.low", "memory.high", "memory.max", "pids.max"} {
			require.NoError(t, os.WriteFile(filepath.Join(cfg.Root, dir, f), nil, 0o600))
		}
		require.NoError(t, os.WriteFile(filepath.Join(cfg.Root, dir, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o600))
	}
	m, err := New(cfg)
	require.NoError(t, err)
	fake := &fakeSystemd{root: cfg.Root, limit: map[string]limits{}}
	m.units = fake
	return m, fake
}

func oneCPU() *corev1.Pod {
	list := corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("64Mi")}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: list, Limits: list},
	}}}}
}

// With the systemd driver slices are made and removed by systemd, which knows their limits.
func TestManager_SlicesThroughSystemd(t *testing.T) {
	m, systemd := newSystemdManager(t, Config{Driver: Systemd, PodPidsLimit: 99})
	parent, err := m.Ensure(t.Context(), oneCPU())
	require.NoError(t, err)
	assert.Equal(t, "/kubepods.slice/kubepods-podu1.slice", parent)
	assert.Equal(t, []string{"start kubepods.slice", "start kubepods-burstable.slice", "start kubepods-besteffort.slice", "start kubepods-podu1.slice"}, systemd.calls)
	assert.Equal(t, limits{shares: 1024, quota: 100000, memory: 64 << 20, pids: 99}, systemd.limit["kubepods-podu1.slice"])
	quota, err := os.ReadFile(filepath.Join(systemd.root, "kubepods.slice/kubepods-podu1.slice/cpu.max"))
	require.NoError(t, err)
	assert.Equal(t, "100000 100000", strings.TrimSpace(string(quota)), "the exact quota is written too")
	assert.Empty(t, m.Unenforced())

	systemd.calls = nil
	_, err = m.Ensure(t.Context(), oneCPU())
	require.NoError(t, err)
	assert.Empty(t, systemd.calls, "nothing has changed")

	systemd.err = errors.New("no answer")
	require.ErrorContains(t, m.Remove(t.Context(), "u1"), "systemd: stop slice kubepods-podu1.slice: no answer")
	raised := oneCPU()
	raised.Spec.Containers[0].Resources.Limits["cpu"] = resource.MustParse("2")
	_, err = m.Ensure(t.Context(), raised)
	require.ErrorContains(t, err, "systemd: slice kubepods")
	assert.ErrorContains(t, err, "no answer")
}

// The driver of a runtime that does not report it is that of the machine.
func TestManager_DriverOfTheMachine(t *testing.T) {
	silent := func(context.Context) (string, error) { return "", runtime.ErrUnsupported }
	m, systemd := newSystemdManager(t, Config{RuntimeDriver: silent})
	parent, err := m.Ensure(t.Context(), oneCPU())
	require.NoError(t, err)
	assert.Equal(t, "/kubepods.slice/kubepods-podu1.slice", parent)
	assert.NotEmpty(t, systemd.calls)

	for name, cfg := range map[string]Config{
		"no slice below this parent": {RuntimeDriver: silent, Parent: "/lab"},
		"no runtime to ask":          {},
		"the runtime's word counts":  {RuntimeDriver: func(context.Context) (string, error) { return "cgroupfs", nil }},
	} {
		m, _ := newSystemdManager(t, cfg)
		assert.NoError(t, m.findDriver(t.Context()), name)
		assert.Equal(t, Cgroupfs, m.named().driver, name)
	}
	m, _ = newSystemdManager(t, Config{RuntimeDriver: silent})
	m.units = nil
	require.NoError(t, m.findDriver(t.Context()))
	assert.Equal(t, Cgroupfs, m.named().driver, "systemd does not own the cgroups")
}

func TestProperties(t *testing.T) {
	values := func(l limits) map[string]any {
		all := map[string]any{}
		for _, p := range properties(l) {
			all[p.Name] = p.Value.Value()
		}
		return all
	}
	const infinity = uint64(math.MaxUint64)
	assert.Equal(t, map[string]any{
		"CPUAccounting": true, "MemoryAccounting": true, "IOAccounting": true, "TasksAccounting": true,
		"CPUQuotaPerSecUSec": infinity, "MemoryMax": infinity, "TasksMax": infinity,
		"MemoryHigh": infinity, "MemoryLow": uint64(0), "MemoryMin": uint64(0),
	}, values(limits{}))
	got := values(limits{shares: 1024, quota: 50000, memory: 1 << 20, pids: 7, qos: memoryQoS{minimum: 1, low: 2, high: 3}})
	assert.Equal(t, []any{uint64(1), uint64(2), uint64(3)}, []any{got["MemoryMin"], got["MemoryLow"], got["MemoryHigh"]})
	assert.Equal(t, uint64(500000), got["CPUQuotaPerSecUSec"])
	assert.Equal(t, uint64(1<<20), got["MemoryMax"])
	assert.Equal(t, uint64(7), got["TasksMax"])
	assert.Equal(t, uint64(100), got["CPUWeight"])
	assert.Equal(t, uint64(510000), values(limits{quota: 50001})["CPUQuotaPerSecUSec"], "whole percents, rounded up")
	assert.Equal(t, uint64(10000), values(limits{quota: 1000})["CPUQuotaPerSecUSec"])
	got = values(limits{quota: 2500, period: 5000})
	assert.Equal(t, []any{uint64(500000), uint64(5000)}, []any{got["CPUQuotaPerSecUSec"], got["CPUQuotaPeriodUSec"]})
}
