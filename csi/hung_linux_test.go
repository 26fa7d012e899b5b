package csi

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/volume"
)

// mountHung mounts a file system that does not answer. remove must be called.
func mountHung(t *testing.T, path string) (remove func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("hung", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	}
	if err != nil {
		_ = unix.Close(fd)
		t.Skipf("requires root and FUSE: %v", err)
	}
	removed := false
	remove = func() {
		if !removed {
			removed = true
			assert.NoError(t, unix.Close(fd)) // frees those who wait for an answer
			assert.NoError(t, unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}
	t.Cleanup(remove)
	return remove
}

// VD-3: with a server that has stopped to answer, pods that have its volumes are synced, other pods
// get an answer, and unmounting is up to the driver.
func TestMount_HungServers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("requires root: run as root to test with mounts")
	}
	mountHung(t, t.TempDir())() // or skip
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
	path := e.mounted(one)
	_, staging := e.paths.staging(&volumeID{driver: "csitest.example", handle: "v", name: "pv-v"})
	removeTarget, removeStaging := mountHung(t, path), mountHung(t, staging)
	// within returns what f does, and fails if it waits for the server.
	within := func(f func() error) error {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- f() }()
		select {
		case err := <-done:
			return err
		case <-time.After(testTimeout):
			t.Fatal("it waits for the server")
			return nil
		}
	}
	mount := func(v volume.DriverVolume) error {
		return within(func() error { _, err := e.Mount(t.Context(), v); return err })
	}
	require.NoError(t, mount(one))
	e.lieAbout("NodePublishVolume", "NodeUnpublishVolume")
	require.ErrorContains(t, mount(two), "NodePublishVolume succeeded, but nothing is mounted")
	require.ErrorContains(t, within(func() error { return e.Unmount(t.Context(), "1") }), path+" is still mounted")
	require.NoError(t, mount(one))
	removeTarget()
	removeStaging()
	e.lieAbout()
	e.unmounted(one.Pod)
	e.unmounted(two.Pod)
	e.requireNothingLeft()
}
