package dirlock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/dirlock"
)

// AG-3: a full disk keeps no agent from starting, which is to free it.
func TestAcquire_OnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	err := unix.Mount("none", dir, "tmpfs", 0, "size=4k")
	if errors.Is(err, unix.EPERM) {
		t.Skip("this container may not mount")
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	filler := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(filler, []byte("x"), 0o600))
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "more"), []byte("x"), 0o600), unix.ENOSPC)

	release, err := dirlock.Acquire(dir)
	require.NoError(t, err)
	_, err = dirlock.Acquire(dir)
	require.ErrorIs(t, err, dirlock.ErrInUse)
	require.ErrorContains(t, err, "an unknown process")
	release()
	require.NoError(t, os.Remove(filler))
	release, err = dirlock.Acquire(dir)
	require.NoError(t, err)
	release()
}
