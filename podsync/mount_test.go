//go:build linux

package podsync_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// PS-4: files that are mounted in the directory of a pod are not deleted, also if the
// path has a blank in it.
func TestFinish_KeepsMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	n := &fakeNode{}
	cfg := newConfig(t, n)
	cfg.PodsDir = filepath.Join(t.TempDir(), "root dir", "pods")
	s := newSyncer(t, cfg)
	outside, at := t.TempDir(), filepath.Join(cfg.PodsDir, "uid-1", "csi", "mount")
	require.NoError(t, os.WriteFile(outside+"/precious", nil, 0o600))
	require.NoError(t, os.MkdirAll(at, 0o700))
	require.NoError(t, unix.Mount(outside, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	require.ErrorContains(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true}), "csi/mount")
	require.FileExists(t, outside+"/precious")
	require.NoError(t, unix.Unmount(at, 0))
	require.NoError(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true}))
	require.NoDirExists(t, filepath.Join(cfg.PodsDir, "uid-1"))
}

// A log directory that was made on a full disk is marked once the disk has space, or else it is never removed.
func TestSync_MarksLogDirectoryAfterAFullDisk(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	cfg.Owner = func() string { return "one" }
	require.NoError(t, os.MkdirAll(cfg.LogsDir, 0o755))
	if err := unix.Mount("tmpfs", cfg.LogsDir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(cfg.LogsDir, unix.MNT_DETACH) })
	filler := filepath.Join(cfg.LogsDir, "filler")
	require.ErrorIs(t, os.WriteFile(filler, make([]byte, 1<<20), 0o600), unix.ENOSPC)
	s := newSyncer(t, cfg)
	_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, os.Remove(filler))
	_, err = s.Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	root, err := os.OpenRoot(cfg.LogsDir)
	require.NoError(t, err)
	defer root.Close()
	assert.Equal(t, "one", owner.MarkOf(root, "default_web_uid-1"))
}
