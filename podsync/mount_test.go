//go:build linux

package podsync_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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
