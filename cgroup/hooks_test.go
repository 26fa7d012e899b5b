package cgroup_test

import (
	"fmt"
	"os"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/internal/hooktest"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "Cgroups", cgroup.Hooks.Join)
}

// Only what changes a cgroup is an operation: not each sync of a pod, nor the removal of what is gone.
func TestHooks_Changed(t *testing.T) {
	var calls []string
	root := madeUpV2(t, "/kubepods")
	m, err := cgroup.New(cgroup.Config{Root: root, Driver: cgroup.Cgroupfs, Hooks: cgroup.Hooks{
		Changed: func(op cgroup.Operation, _ time.Duration, err error) {
			calls = append(calls, fmt.Sprint(op, " ", err == nil))
			panic("defect of the application")
		},
	}})
	require.NoError(t, err)
	pod := guaranteed("a")
	dir := root + "/kubepods/poda"
	_, err = m.Ensure(t.Context(), pod)
	if err != nil {
		t.Skip("this machine does not let the files of a made-up cgroup be written:", err)
	}
	for range 2 {
		_, err = m.Ensure(t.Context(), pod)
		require.NoError(t, err)
	}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
	assert.Equal(t, []string{"create true"}, calls)
	require.DirExists(t, dir)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files { // the kernel removes them with the directory
		require.NoError(t, os.Remove(dir+"/"+f.Name()))
	}
	require.NoError(t, m.Remove(t.Context(), "a"))
	require.NoError(t, m.Remove(t.Context(), "a"))
	require.NoError(t, m.Remove(t.Context(), "stranger"))
	assert.Equal(t, []string{"create true", "destroy true"}, calls)
}

func TestVersion(t *testing.T) {
	assert.Equal(t, 2, cgroup.Version(fstest.MapFS{"sys/fs/cgroup/cgroup.controllers": {}}))
	assert.Equal(t, 1, cgroup.Version(fstest.MapFS{"sys/fs/cgroup/memory/tasks": {}}))
	assert.Equal(t, 0, cgroup.Version(fstest.MapFS{"sys/fs": {Mode: os.ModeDir}}))
}
