package csi

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/systest"
	"github.com/sublet-dev/agent/volume"
)

// VD-3: with a server that has stopped to answer, pods that have its volumes are synced, other pods
// get an answer, and unmounting is up to the driver.
func TestMount_HungServers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("requires root: run as root to test with mounts")
	}
	systest.MountHung(t, t.TempDir())() // or skip
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
	path := e.mounted(one)
	_, staging := e.paths.staging(&volumeID{driver: "csitest.example", handle: "v", name: "pv-v"})
	removeTarget, removeStaging := systest.MountHung(t, path), systest.MountHung(t, staging)
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
