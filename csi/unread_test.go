package csi

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/volume"
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
	id := stagedVolume
	require.NoError(t, e.unstageOrphan(t.Context(), id))
	assert.Empty(t, e.methods())
	e.mounted(three)
	assert.Nil(t, e.VolumesInUse())
	require.ErrorIs(t, e.Unmount(t.Context(), "2"), unix.ELOOP)
	_, err := e.Mount(t.Context(), two)
	require.ErrorIs(t, err, unix.ELOOP)
	alone := func(uid, name string) volume.DriverVolume {
		v := e.volumeOf(newPod(uid), name)
		v.PersistentVolume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		return v
	}
	four := alone("4", "alone")
	_, err = e.Mount(t.Context(), alone("4", "v"))
	require.ErrorContains(t, err, "may be in use by the pod with UID 2")
	e.mounted(four)
	_, err = e.Mount(t.Context(), alone("5", "alone"))
	require.ErrorContains(t, err, "is in use by the pod with UID 4")
	mayHave := func(name string, block, stages bool) bool {
		return e.mayHave("2", &operation{id: volumeID{csitest.Name, name, "pv-" + name, block}, client: &client{can: map[capability]bool{canStage: stages}}})
	}
	assert.Equal(t, os.Geteuid() != 0, mayHave("alone", false, true), "the mount table has what is staged")
	assert.True(t, mayHave("alone", false, false), "it may be published by a link")
	assert.True(t, mayHave("v", false, true))
	assert.False(t, mayHave("never", false, true))
	e.mountsBelow = func(string) ([]mounts.Point, error) { return nil, fs.ErrNotExist }
	assert.True(t, mayHave("never", false, true))
	e.mountsBelow = mounts.Below
	assert.False(t, mayHave("disk", true, true))
	require.NoError(t, writeRecord(e.paths.record("2", &volumeID{name: "pv-disk", block: true}), record{}))
	assert.True(t, mayHave("disk", true, true))
	require.NoError(t, os.RemoveAll(filepath.Join(e.paths.plugin(), blockDirName, "pv-disk")))
	e.loadUnread()
	assert.Nil(t, e.VolumesInUse())
	assert.Empty(t, e.KnownVolumesInUse(), "no volume has to be attached")

	restore()
	e.loadUnread()
	assert.NotNil(t, e.VolumesInUse())
	assert.FileExists(t, e.mounted(two)+"/file")
	e.unmounted(two.Pod)
	e.unmounted(three.Pod)
	e.unmounted(four.Pod)
	e.requireNothingLeft()
}

// VD-7: what other pods wait for can be attached while the directory of one cannot be read.
func TestKnownVolumesInUse(t *testing.T) {
	cluster := new(fakeCluster)
	attach := func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster }
	e := newEnv(t, attach)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "w")
	e.mounted(one)
	e.restart(attach)
	restore := e.makeUnreadable("1")
	e.register()
	e.mounted(two)
	assert.Nil(t, e.VolumesInUse())
	assert.Equal(t, []corev1.UniqueVolumeName{"kubernetes.io/csi/csitest.example^v", "kubernetes.io/csi/csitest.example^w"}, e.KnownVolumesInUse(),
		"those that are staged, and those of pods")
	restore()
	e.loadUnread()
	assert.Len(t, e.VolumesInUse(), 2)
	assert.Equal(t, e.VolumesInUse(), e.KnownVolumesInUse())
	e.unmounted(one.Pod)
	e.unmounted(two.Pod)
	e.requireNothingLeft()
}
