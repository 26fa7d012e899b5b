package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/cgroup"
)

// OW-1: cgroups with the mark of another agent, and QoS cgroups that a kubelet or another
// agent has created, are neither changed nor removed.
func TestManager_LeavesGroupsOfOthersAlone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mark directories")
	}
	root := madeUpV2(t, "/kubepods/burstable/podu1", "/kubepods/burstable/podu2", "/kubepods/besteffort")
	theirs := filepath.Join(root, "kubepods/burstable/podu1")
	if err := unix.Setxattr(theirs, "trusted.sublet.owner", []byte("two"), 0); err != nil {
		t.Skip("the file system keeps no marks: ", err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(theirs, "cgroup.procs"), []byte("4711\n"), 0o600))
	tier := filepath.Join(root, "kubepods/burstable/cpu.weight")
	require.NoError(t, os.WriteFile(tier, []byte("77"), 0o600))
	m, err := cgroup.New(cgroup.Config{Root: root, Owner: func() string { return "one" }})
	require.NoError(t, err)

	_, err = m.Ensure(t.Context(), burstable("u1"))
	require.ErrorIs(t, err, cgroup.ErrNotOwner)
	require.NoError(t, m.Remove(t.Context(), "u1"))
	assert.DirExists(t, theirs)
	assert.Empty(t, read(t, theirs, "cpu.weight"))

	_, err = m.Ensure(t.Context(), burstable("u2"))
	require.NoError(t, err, "one without a mark is taken over")
	assert.Equal(t, "77", read(t, tier), "the tier keeps its weight")
	known, err := m.PodUIDs()
	require.NoError(t, err)
	assert.Len(t, known, 1)

	// An empty cgroup that another agent has left is adopted.
	require.NoError(t, os.WriteFile(filepath.Join(theirs, "cgroup.procs"), nil, 0o600))
	_, err = m.Ensure(t.Context(), burstable("u1"))
	require.NoError(t, err)
	known, err = m.PodUIDs()
	require.NoError(t, err)
	assert.Len(t, known, 2)
}
