package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// An ordinary user has the cgroups below the one that was delegated to it, and not those above.
// A new process of the agent recognizes them.
func TestManager_InADelegatedCgroup(t *testing.T) {
	const delegated = "user.slice/user-1000.slice/user@1000.service/agent.service"
	root := t.TempDir()
	for dir := filepath.Join(delegated, "kubepods/podu1"); ; dir = filepath.Dir(dir) {
		at := filepath.Join(root, dir)
		require.NoError(t, os.MkdirAll(at, 0o700))
		for _, f := range []string{"cpu.max", "cpu.weight", "memory.min", "memory.low", "memory.high", "memory.max", "pids.max"} {
			require.NoError(t, os.WriteFile(filepath.Join(at, f), nil, 0o600))
		}
		mode := os.FileMode(0o600)
		if len(dir) < len(delegated) {
			mode = 0o400
		}
		require.NoError(t, os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), nil, mode))
		require.NoError(t, os.WriteFile(filepath.Join(at, "cgroup.controllers"), []byte("memory pids\n"), 0o600))
		if dir == "." {
			break
		}
	}
	for _, q := range []string{"burstable", "besteffort"} {
		at := filepath.Join(root, delegated, "kubepods", q)
		require.NoError(t, os.Mkdir(at, 0o700))
		for _, f := range []string{"memory.min", "memory.low", "memory.high", "memory.max", "pids.max"} {
			require.NoError(t, os.WriteFile(filepath.Join(at, f), nil, 0o600))
		}
	}
	cfg := Config{Root: root, Parent: "/" + delegated, PodPidsLimit: 7, Owner: func() string { return "me" }}
	m, err := New(cfg)
	require.NoError(t, err)
	_, err = m.Ensure(t.Context(), oneCPU())
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(root, delegated, "kubepods/podu1/memory.max"))
	require.NoError(t, err)
	assert.Equal(t, "67108864", string(data))
	assert.Equal(t, []string{"cpu weights and limits of pods: controller cpu is not in " + filepath.Join(root, delegated) + "/cgroup.controllers; delegate it (Delegate= of a systemd unit)"}, m.Unenforced())
	if unix.Setxattr(root, ownerMark(), []byte("x"), 0) != nil {
		t.Log("the file system keeps no marks")
		return
	}
	next, err := New(cfg)
	require.NoError(t, err)
	known, err := next.PodUIDs()
	require.NoError(t, err)
	assert.Equal(t, []types.UID{"u1"}, known)
}

func TestExplained(t *testing.T) {
	inner := func(err error) error {
		return fmt.Errorf("failed to write subtree controllers [cpu] to %q: %w", "/sys/fs/cgroup/a/cgroup.subtree_control", err)
	}
	require.ErrorContains(t, explained(inner(unix.EBUSY)), "move them into one of these (DelegateSubgroup=")
	require.ErrorIs(t, explained(inner(unix.EBUSY)), unix.EBUSY)
	require.ErrorContains(t, explained(inner(unix.EACCES)), "have the cgroup parent delegated to this user")
	assert.Equal(t, unix.EBUSY, explained(unix.EBUSY), "of a limit")
	assert.Equal(t, unix.EINVAL, explained(unix.EINVAL))
}
