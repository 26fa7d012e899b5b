package csi

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// hang has calls of a method block until they are cancelled or release is called. began gets a value for each.
func (e *testEnv) hang(method string) (began chan struct{}, release func()) {
	began, released := make(chan struct{}, 100), make(chan struct{})
	e.driver.SetBefore(func(ctx context.Context, m string, _ any) error {
		if m != method {
			return nil
		}
		began <- struct{}{}
		select {
		case <-ctx.Done():
		case <-released:
		}
		return errors.New("gave up")
	})
	return began, func() { e.driver.SetBefore(nil); close(released) }
}

// VD-3: a pod that runs does not wait for a call of the driver for another pod with its volume.
func TestMount_RunningPodsDoNotWaitForOthers(t *testing.T) {
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
	path := e.mounted(one)
	began, release := e.hang("NodePublishVolume")
	done := make(chan error, 1)
	go func() {
		_, err := e.Mount(t.Context(), two)
		done <- err
	}()
	<-began
	assert.Equal(t, path, e.mounted(one))
	release()
	require.ErrorContains(t, <-done, "gave up")
	e.unmounted(one.Pod)
	e.unmounted(two.Pod)
	e.requireNothingLeft()
}

// VD-3: a pod that runs waits for a while only for its volume to be published once more. The driver is not called for
// another sync meanwhile, and not waited for when the pod ends.
func TestMount_RunningPodsDoNotWaitForUpdates(t *testing.T) {
	for _, ends := range []bool{false, true} {
		e := newEnv(t, nil)
		e.updateWait = time.Millisecond
		yes := true
		e.setCSIDriver(storagev1.CSIDriverSpec{RequiresRepublish: &yes})
		v := e.volumeOf(newPod("1"), "v")
		path := e.mounted(v)
		began, release := e.hang("NodePublishVolume")
		e.driver.TakeCalls()
		assert.Equal(t, path, e.mounted(v))
		<-began
		assert.Equal(t, path, e.mounted(v))
		assert.Len(t, e.driver.Calls("NodePublishVolume"), 1)
		if !ends {
			release()
			require.Eventually(t, func() bool { return len(e.recorded("FailedMount")) == 1 }, testTimeout, time.Millisecond)
		}
		e.updateWait = testTimeout
		e.unmounted(v.Pod)
		if ends {
			assert.Empty(t, e.recorded("FailedMount"))
		}
		e.requireNothingLeft()
	}
}

// A volume that cannot be published once more is an event, and the pod runs on.
func TestMount_FailedUpdatesAreEvents(t *testing.T) {
	e := newEnv(t, nil)
	yes := true
	e.setCSIDriver(storagev1.CSIDriverSpec{RequiresRepublish: &yes})
	v := e.volumeOf(newPod("1"), "v")
	path := e.mounted(v)
	e.driver.SetBefore(func(context.Context, string, any) error { return errors.New("no such key") })
	assert.Equal(t, path, e.mounted(v))
	e.driver.SetBefore(nil)
	e.Deregister(t.Context(), e.plugin())
	assert.Equal(t, path, e.mounted(v))
	events := e.recorded("FailedMount")
	require.Len(t, events, 2)
	assert.Equal(t, `pod-1: MountVolume.SetUp failed for volume "data": CSI driver csitest.example: NodePublishVolume: no such key`, events[0])
	assert.Contains(t, events[1], `pod-1: MountVolume.SetUp failed for volume "data": CSI driver csitest.example is not registered on this node`)
	e.register()
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

// VD-3: a pod that has ended does not wait for its volume to be unstaged. The volume is in use until it is, also over a restart,
// and Run goes on with it.
func TestUnmount_DoesNotWaitForUnstaging(t *testing.T) {
	cluster := new(fakeCluster)
	attach := func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster }
	e := newEnv(t, attach)
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	inUse := []corev1.UniqueVolumeName{"kubernetes.io/csi/csitest.example^v"}
	require.Equal(t, inUse, e.VolumesInUse())
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == "NodeUnstageVolume" {
			return errors.New("busy")
		}
		return nil
	})
	e.unmounted(v.Pod)
	assert.Equal(t, inUse, e.VolumesInUse())
	assert.NoDirExists(t, e.paths.files("1", "pv-v"))
	e.restart(attach)
	assert.Equal(t, inUse, e.VolumesInUse())
	e.register()
	require.ErrorContains(t, e.unstageOrphan(t.Context(), stagedVolume), "busy")
	assert.Equal(t, inUse, e.VolumesInUse())
	e.driver.SetBefore(nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	dir, _ := e.paths.staging(&stagedVolume)
	require.Eventually(t, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) && len(e.VolumesInUse()) == 0 }, testTimeout, time.Millisecond)
	stop()
	require.NoError(t, <-done)
	e.requireNothingLeft()
}

// VD-3: a pod that has ended waits for a while only for its volume to be unstaged. The next pod with the volume waits for that.
func TestUnmount_DoesNotWaitForAHungUnstage(t *testing.T) {
	e := newEnv(t, nil)
	e.updateWait = time.Millisecond
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	began, release := e.hang("NodeUnstageVolume")
	e.unmounted(v.Pod)
	<-began
	e.Manager.mu.Lock()
	assert.Len(t, e.volumes[stagedVolume].lock, 1, "the driver is not done with it")
	e.Manager.mu.Unlock()
	second := e.volumeOf(newPod("2"), "v")
	done := make(chan error, 1)
	go func() {
		_, err := e.Mount(t.Context(), second)
		done <- err
	}()
	assert.Len(t, e.driver.Calls("NodeStageVolume"), 1)
	release()
	require.NoError(t, <-done)
	assert.Len(t, e.driver.Calls("NodeStageVolume"), 2)
	e.updateWait = testTimeout
	e.unmounted(second.Pod)
	e.requireNothingLeft()
}

// VD-3: a pod whose volume was never attached or staged ends without the driver, which is not asked to undo what it has not done.
func TestUnmount_AsksForWhatWasDone(t *testing.T) {
	cluster := new(fakeCluster)
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster })
	v := e.volumeOf(newPod("1"), "v")
	cluster.err = errors.New("not attached")
	_, err := e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "not attached")
	e.Deregister(t.Context(), e.plugin())
	e.unmounted(v.Pod)
	assert.Empty(t, e.VolumesInUse())
	e.requireNothingLeft()

	cluster.err = nil
	e.register()
	e.methods()
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == "NodeStageVolume" {
			return errors.New("broken")
		}
		return nil
	})
	_, err = e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "broken")
	e.driver.SetBefore(nil)
	e.unmounted(v.Pod)
	assert.Equal(t, []string{"NodeStageVolume", "NodeUnstageVolume"}, e.methods(), "what may be staged is unstaged")
	e.requireNothingLeft()
}
