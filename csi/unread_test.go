package csi

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/csitest"
)

// makeUnreadable makes the volumes of a pod unreadable, as a damaged disk does, until restore is called.
func (e *testEnv) makeUnreadable(uid types.UID) (restore func()) {
	e.t.Helper()
	dir := filepath.Join(e.paths.pods(), string(uid), "volumes")
	require.NoError(e.t, os.Rename(dir, dir+"-kept"))
	require.NoError(e.t, os.Symlink(dir, dir))
	return func() {
		require.NoError(e.t, os.Remove(dir))
		require.NoError(e.t, os.Rename(dir+"-kept", dir))
	}
}

// A pod whose directory cannot be read waits, and keeps what is staged. Other pods get their volumes, and end.
func TestLoad_UnreadablePod(t *testing.T) {
	e := newEnv(t, nil)
	one, two, three := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v"), e.volumeOf(newPod("3"), "w")
	e.mounted(one)
	path := e.mounted(two)
	require.NoError(t, os.WriteFile(path+"/file", nil, 0o600))
	e.restart(nil)
	restore := e.makeUnreadable("2")
	e.register()
	e.driver.TakeCalls()

	e.unmounted(one.Pod)
	assert.Equal(t, []string{"NodeUnpublishVolume"}, e.methods(), "the volume stays staged")
	id := volumeID{csitest.Name, "v", "pv-v", false}
	require.NoError(t, e.unstageOrphan(t.Context(), id))
	assert.Empty(t, e.methods())
	e.mounted(three)
	assert.Nil(t, e.VolumesInUse())
	require.ErrorIs(t, e.Unmount(t.Context(), "2"), unix.ELOOP)
	_, err := e.Mount(t.Context(), two)
	require.ErrorIs(t, err, unix.ELOOP)
	alone := e.volumeOf(newPod("4"), "alone")
	alone.PersistentVolume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	_, err = e.Mount(t.Context(), alone)
	require.ErrorContains(t, err, "may be in use")
	e.loadUnread()
	assert.Nil(t, e.VolumesInUse())

	restore()
	e.loadUnread()
	assert.NotNil(t, e.VolumesInUse())
	assert.FileExists(t, e.mounted(two)+"/file")
	e.unmounted(two.Pod)
	e.unmounted(three.Pod)
	e.requireNothingLeft()
}
