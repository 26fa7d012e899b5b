package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/volume"
)

// writesTo requires that what a pod writes to its volume gets there.
func (e *testEnv) writesTo(v volume.DriverVolume) {
	e.t.Helper()
	require.NoError(e.t, os.WriteFile(filepath.Join(e.mounted(v), "file"), []byte(v.Pod.UID), 0o600))
	data, err := os.ReadFile(filepath.Join(e.driver.VolumeDir("v"), "data", "file"))
	require.NoError(e.t, err)
	require.Equal(e.t, string(v.Pod.UID), string(data))
}

// VD-1: a volume whose NodeUnstageVolume has failed may be unstaged all the same, or in part. The next pod has it
// staged once more, and does not write to the directory below.
func TestMount_RestagesAfterAFailedUnstage(t *testing.T) {
	for _, done := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			e := newEnv(t, nil)
			one, two, other := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v"), e.volumeOf(newPod("3"), "v")
			other.PersistentVolume.Name = "pv-other"
			e.mounted(one)
			setFault := e.driver.SetBefore
			if done {
				setFault = e.driver.SetAfter
			}
			setFault(func(_ context.Context, method string, _ any) error {
				if method == "NodeUnstageVolume" {
					return errors.New("interrupted")
				}
				return nil
			})
			e.unmounted(one.Pod)
			setFault(nil)
			if restart {
				e.restart(nil)
				e.register()
			}
			e.driver.TakeCalls()
			e.writesTo(two)
			want := []string{"NodeStageVolume", "NodePublishVolume"}
			if restart {
				want = append(want, "NodeExpandVolume") // its size was known for the pod alone
			}
			assert.Equal(t, want, e.methods(), "done: %t, after a restart: %t", done, restart)
			e.writesTo(other)
			for _, v := range []volume.DriverVolume{one, two, other} {
				e.unmounted(v.Pod)
			}
			e.requireNothingLeft()
		}
	}
}

// VD-1: what was unmounted by hand is staged once more.
func TestMount_RestagesWhatWasUnmounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("requires root: an ordinary user's driver cannot mount")
	}
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
	e.mounted(one)
	_, path := e.paths.staging(&stagedVolume)
	require.NoError(t, unix.Unmount(path, unix.UMOUNT_NOFOLLOW))
	e.driver.TakeCalls()
	e.writesTo(two)
	assert.Equal(t, []string{"NodeStageVolume", "NodePublishVolume"}, e.methods())
	e.unmounted(one.Pod)
	e.unmounted(two.Pod)
	e.requireNothingLeft()
}

// VD-2: agents that were killed while they wrote or removed records leave nothing.
func TestLoad_RemovesEmptyDirectories(t *testing.T) {
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	staged, path := e.paths.staging(&stagedVolume)
	empty, _ := e.paths.staging(&volumeID{driver: csitest.Name, handle: "w"})
	partial, _ := e.paths.staging(&volumeID{driver: csitest.Name, handle: "x"})
	device := e.paths.record("1", &volumeID{name: "pv", block: true})
	link := e.paths.device("1", "pv") // which is made before the record
	published := filepath.Dir(e.paths.target("1", &volumeID{name: "pv", block: true}))
	another := filepath.Join(filepath.Dir(staged), "another")
	for _, dir := range []string{empty, partial, filepath.Dir(device), filepath.Dir(link), published, another} {
		require.NoError(t, os.MkdirAll(dir, 0o750))
	}
	require.NoError(t, os.Symlink(published, link))
	for _, file := range []string{filepath.Join(staged, recordName), filepath.Join(partial, recordName), device} {
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".123"), nil, 0o600)) // as atomicfile names it
	}
	e.restart(nil)
	require.NoError(t, e.load())
	assert.DirExists(t, another)
	assert.DirExists(t, path)
	assert.NoDirExists(t, empty)
	assert.NoDirExists(t, partial)
	require.NoError(t, os.Remove(another))
	e.register()
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}
