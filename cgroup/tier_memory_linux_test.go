package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/cgroup"
)

// CR-2: where pods use more than what an agent with another configuration leaves to them, the kernel of v2 would kill for the
// limit. It is set as soon as they use less, without what is of files. Everything else is set at once.
func TestEnsure_KeepsTheMemoryOfAllPods(t *testing.T) {
	root := madeUpV2(t, "/kubepods/podu1", "/kubepods/burstable", "/kubepods/besteffort")
	write := writer(t, filepath.Join(root, "kubepods"))
	var events eventList
	m, err := cgroup.New(cgroup.Config{
		Root: root, Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("32Mi")},
		NodeName: "n1", Recorder: &events,
	})
	require.NoError(t, err)
	ensure := func(limit, reason string, recorded int) {
		t.Helper()
		_, err := m.Ensure(t.Context(), guaranteed("u1"))
		require.NoError(t, err, "the pod is set up")
		require.Equal(t, limit, read(t, root, "kubepods/memory.max"))
		require.Equal(t, "174", read(t, root, "kubepods/cpu.weight"))
		require.Len(t, events, recorded)
		require.Equal(t, reason, events[recorded-1].Reason)
	}
	write("memory.max", "67108864")
	write("memory.current", "40000000")
	write("memory.stat", "anon 35000000\nfile 5000000\nactive_file 2000000\ninactive_file 3000000")
	for range 2 {
		ensure("67108864", "FailedNodeAllocatableEnforcement", 1)
	}
	assert.Contains(t, events[0].Message, "cannot set memory limit (33554432) below current usage")
	write("memory.stat", "anon 30000000\nfile 10000000\nactive_file 2000000\ninactive_file 8000000")
	ensure("33554432", "NodeAllocatableEnforced", 2)
	write("memory.max", "33554432")
	write("memory.stat", "anon 40000000")
	ensure("33554432", "NodeAllocatableEnforced", 2)
}

// CR-2: the kernel of v1 rejects such a limit, which must keep no pod from being set up.
func TestEnsure_KeepsTheMemoryOfAllPodsOnV1(t *testing.T) {
	const root, parent = "/sys/fs/cgroup", "/lab/cgrouptiermemory"
	if os.Getuid() != 0 || !isV1(root) {
		t.Skip("needs root and cgroup v1")
	}
	manager := func(memory string, recorder cgroup.Recorder) *cgroup.Manager {
		m, err := cgroup.New(cgroup.Config{Root: root, Parent: parent, Allocatable: corev1.ResourceList{"memory": resource.MustParse(memory)}, Recorder: recorder})
		require.NoError(t, err)
		return m
	}
	first := manager("128Mi", nil)
	if limits := first.Unenforced(); len(limits) > 0 {
		t.Skip(limits)
	}
	removeCgroups(t, root, parent)
	t.Cleanup(func() { assert.NoError(t, first.Remove(t.Context(), "u1")) })
	group, err := first.Ensure(t.Context(), sized("500m", "64Mi"))
	require.NoError(t, err)
	end := allocate(t, filepath.Join(root, "memory", group))
	limit := func() string { return read(t, root, "memory", parent, "kubepods/memory.limit_in_bytes") }
	require.Equal(t, "134217728", limit())

	var events eventList
	next := manager("16Mi", &events)
	for range 2 {
		name, err := next.Ensure(t.Context(), sized("500m", "64Mi"))
		require.NoError(t, err)
		require.Equal(t, group, name)
		require.Equal(t, "134217728", limit())
	}
	require.Len(t, events, 1)
	assert.Contains(t, events[0].Message, "cannot set memory limit (16777216) below current usage")
	end()
	_, err = next.Ensure(t.Context(), sized("500m", "64Mi"))
	require.NoError(t, err)
	require.Equal(t, "16777216", limit())
}
