package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/volume"
)

// VD-1: after a restart of the agent a mounted volume is used as it is, without its driver.
func TestLoad_AdoptsMountedVolumes(t *testing.T) {
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	path := e.mounted(v)
	e.restart(nil)
	assert.Equal(t, path, e.mounted(v))
	e.register()
	e.driver.TakeCalls()
	other := e.volumeOf(newPod("2"), "v")
	e.mounted(other)
	assert.Equal(t, []string{"NodeStageVolume", "NodePublishVolume"}, e.methods(), "a previous process may have begun to unstage it")
	third := e.volumeOf(newPod("3"), "v")
	e.mounted(third)
	assert.Equal(t, []string{"NodePublishVolume"}, e.methods(), "it is staged")
	assert.Empty(t, e.recorded("FileSystemResizeSuccessful"))
	e.unmounted(v.Pod)
	e.unmounted(other.Pod)
	e.unmounted(third.Pod)
	e.requireNothingLeft()
}

// Two PersistentVolumes with one handle share what is staged.
func TestUnmount_SharedHandles(t *testing.T) {
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("1"), "v")
	two.PersistentVolume.Name = "pv-other"
	e.mounted(one)
	path := e.mounted(two)
	require.NoError(t, os.WriteFile(path+"/file", nil, 0o600))
	e.driver.TakeCalls()
	require.NoError(t, e.unmount(t.Context(), "1", stagedVolume))
	assert.Equal(t, []string{"NodeUnpublishVolume"}, e.methods())
	require.NoError(t, e.unstageOrphan(t.Context(), stagedVolume))
	assert.FileExists(t, path+"/file")
	e.unmounted(one.Pod)
	e.requireNothingLeft()
}

// VD-1: while a volume is unstaged, no pod gets it by another PersistentVolume with its handle.
func TestUnmount_SharedHandlesWaitForEachOther(t *testing.T) {
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
	two.PersistentVolume.Name = "pv-other"
	e.mounted(one)
	var errMount error
	e.driver.SetBefore(func(ctx context.Context, method string, _ any) error {
		if method == "NodeUnstageVolume" {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			_, errMount = e.Mount(ctx, two)
		}
		return nil
	})
	e.unmounted(one.Pod)
	require.ErrorIs(t, errMount, context.DeadlineExceeded, "it waits")
	e.driver.SetBefore(nil)
	e.mounted(two)
	e.unmounted(two.Pod)
	e.requireNothingLeft()
}

// What is staged for two PersistentVolumes is unstaged for both, and is no orphan afterwards.
func TestUnmount_SharedHandlesLeaveNoOrphan(t *testing.T) {
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
	two.PersistentVolume.Name = "pv-other"
	e.mounted(one)
	e.mounted(two)
	e.unmounted(one.Pod)
	e.unmounted(two.Pod)
	assert.Empty(t, e.volumes)
	e.requireNothingLeft()
}

// A reboot ends all mounts: the records are of another boot.
func TestLoad_MountsAfterAReboot(t *testing.T) {
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	e.restart(nil)
	e.boot = "another"
	e.register()
	e.driver.TakeCalls()
	e.mounted(v)
	assert.Equal(t, []string{"NodeStageVolume", "NodePublishVolume"}, e.methods())
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

// VD-2: whenever the agent is killed, Unmount by UID removes what there is.
func TestUnmount_AfterACrashAtAnyCall(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeExpandVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		for _, done := range []bool{false, true} {
			name := method + " not answered"
			if done {
				name = method + " done"
			}
			t.Run(name, func(t *testing.T) {
				e := newEnv(t, nil)
				v := e.volumeOf(newPod("1"), "v")
				ctx, crash := context.WithCancel(t.Context())
				e.driver.SetBefore(func(call context.Context, m string, _ any) error {
					if m != method {
						return nil
					}
					crash()
					<-call.Done()
					if done {
						return nil // it goes on without the agent
					}
					return errors.New("interrupted")
				})
				if _, err := e.Mount(ctx, v); err == nil {
					require.Error(t, e.Unmount(ctx, v.Pod.UID))
				}
				// The driver finishes what it began before it is asked for something else.
				e.stop(true)
				e.driver.SetBefore(nil)
				e.restart(nil)
				e.serve()
				e.unmounted(v.Pod)
				e.unstageOrphans() // as Run does
				e.requireNothingLeft()
			})
		}
	}
}

// VD-2: a volume that is staged for a pod that has vanished is unstaged, as soon as its driver is
// there.
func TestRun_UnstagesOrphans(t *testing.T) {
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	c := e.clients[csitest.Name]
	require.NoError(t, e.unpublish(t.Context(), c, "1", &stagedVolume))
	require.NoError(t, os.RemoveAll(filepath.Join(e.dir, "root", "pods")))
	kept := e.volumeOf(newPod("2"), "kept")
	e.mounted(kept)
	e.restart(func(_ *testEnv, cfg *Config) { cfg.HealthPeriod = 10 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	e.register()
	require.Eventually(t, func() bool { return len(e.driver.Calls("NodeUnstageVolume")) == 1 }, testTimeout, time.Millisecond)
	dir, _ := e.paths.staging(&stagedVolume)
	require.Eventually(t, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) }, testTimeout, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	assert.Len(t, e.driver.Calls("NodeUnstageVolume"), 1)
	e.restart(nil)
	e.register()
	e.unmounted(kept.Pod)
	e.requireNothingLeft()
}

// A damaged record does not keep its pod, and nothing is deleted
// through a mount.
func TestUnmount_DamagedRecords(t *testing.T) {
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	path := e.mounted(v)
	file := filepath.Join(filepath.Dir(path), recordName)
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, text := range []string{"", "{}", `{"driverName": "..", "volumeHandle": "v", "specVolID": "x"}`, "[1]"} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		e.restart(nil)
		e.register()
		if os.Geteuid() == 0 {
			require.ErrorContains(t, e.Unmount(t.Context(), "1"), "is damaged", text)
			require.FileExists(t, file)
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
	require.NoError(t, os.WriteFile(file, good, 0o600))
	e.restart(nil)
	e.register()
	e.unmounted(v.Pod)
	dir := e.paths.files("2", "pv-x")
	require.NoError(t, os.MkdirAll(dir, 0o750))
	e.restart(nil)
	e.register()
	require.NoError(t, e.Unmount(t.Context(), "2"))
	assert.NoDirExists(t, dir)
	e.requireNothingLeft()
}

// The records are those of a kubelet, which may have mounted the volume.
func TestLoad_ReadsRecordsOfTheKubelet(t *testing.T) {
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	path := e.mounted(v)
	kubelets := `{"attachmentID":"csi-1","driverName":"csitest.example","nodeName":"n","specVolID":"pv-v","volumeHandle":"v","volumeLifecycleMode":"Persistent"}` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), recordName), []byte(kubelets), 0o600))
	stage, _ := e.paths.staging(&stagedVolume)
	require.NoError(t, os.WriteFile(filepath.Join(stage, recordName), []byte(`{"driverName":"csitest.example","volumeHandle":"v"}`), 0o600))
	e.restart(nil)
	e.register()
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

func TestStats(t *testing.T) {
	e := newEnv(t, func(e *testEnv, cfg *Config) {
		cfg.HealthPeriod = 10 * time.Millisecond
		e.driver.Health = func(string) []*spec.VolumeHealth_VolumeHealthEntry {
			return []*spec.VolumeHealth_VolumeHealthEntry{{Status: spec.VolumeHealthErrorType_DATA_LOSS, Reason: "DiskFailed", Message: "sector 7"}}
		}
	})
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	assert.Empty(t, e.Stats("1"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	require.Eventually(t, func() bool { return len(e.Stats("1")) > 0 }, testTimeout, time.Millisecond)
	s := e.Stats("1")["data"]
	usage := e.VolumeUsage("1")["data"]
	assert.Equal(t, []uint64{uint64(s.Capacity), uint64(s.Used), uint64(s.Available), uint64(s.Inodes), uint64(s.InodesUsed)},
		[]uint64{usage.CapacityBytes, usage.UsedBytes, usage.AvailableBytes, usage.Inodes, usage.InodesUsed})
	assert.Equal(t, s.At, usage.At)
	assert.Equal(t, int64(1<<30), s.Capacity)
	assert.Equal(t, [5]int64{10, 1<<30 - 10, 100, 1, 99}, [5]int64{s.Used, s.Available, s.Inodes, s.InodesUsed, s.InodesAvailable})
	assert.Equal(t, []string{"DATA_LOSS DiskFailed: sector 7"}, s.Abnormal)
	cancel()
	require.NoError(t, <-done)
	assert.Equal(t, []string{`pod-1: volume "data": DATA_LOSS DiskFailed: sector 7`}, e.recorded("VolumeConditionAbnormal"))
	id := stagedVolume
	e.keepStats(id, "1", Stats{At: time.Now()})
	assert.Equal(t, []string{`pod-1: volume "data" is well`}, e.recorded("VolumeConditionNormal"))
	e.keepStats(id, "none", Stats{})
	e.register()
	e.unmounted(v.Pod)
	assert.Empty(t, e.Stats("1"))
	e.requireNothingLeft()
}

// fakeCluster is what an API server says.
type fakeCluster struct {
	context  map[string]string
	err      error
	drivers  []storagev1.CSINodeDriver
	expanded []string
	reported []string // of expansions that were not completed
	unable   error    // to report those
}

func (c *fakeCluster) Attached(context.Context, string, string) (map[string]string, error) {
	return c.context, c.err
}

func (c *fakeCluster) SetDrivers(list []storagev1.CSINodeDriver) { c.drivers = list }

func (c *fakeCluster) Expanded(_ context.Context, _ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) error {
	c.expanded = append(c.expanded, v.Name)
	return nil
}

func (c *fakeCluster) Expanding(_ context.Context, claim *corev1.PersistentVolumeClaim) error {
	c.reported = append(c.reported, "expanding "+claim.Name)
	return c.unable
}

func (c *fakeCluster) ExpansionFailed(_ context.Context, claim *corev1.PersistentVolumeClaim, reason error, infeasible bool) error {
	c.reported = append(c.reported, fmt.Sprintf("failed %s, infeasible %t: %v", claim.Name, infeasible, reason))
	return c.unable
}

// VD-7: a volume that has to be attached is staged after that.
func TestMount_WaitsForAttachments(t *testing.T) {
	cluster := &fakeCluster{err: errors.New("volume attachment csi-1 is not attached")}
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster })
	require.Len(t, cluster.drivers, 1)
	assert.Equal(t, "csitest.example node [topology.csitest.example/node]", cluster.drivers[0].Name+" "+cluster.drivers[0].NodeID+" ["+cluster.drivers[0].TopologyKeys[0]+"]")
	assert.Equal(t, int32(csitest.MaxVolumes), *cluster.drivers[0].Allocatable.Count)
	assert.Equal(t, map[string]string{csitest.TopologyKey: "node"}, e.Topology())
	v := e.volumeOf(newPod("1"), "v")
	_, err := e.Mount(t.Context(), v)
	require.EqualError(t, err, "volume is not attached: volume attachment csi-1 is not attached")
	assert.Empty(t, e.methods())
	assert.Equal(t, []corev1.UniqueVolumeName{"kubernetes.io/csi/csitest.example^v"}, e.VolumesInUse(), "it must not be detached from now on")
	cluster.err, cluster.context = nil, map[string]string{"device": "/dev/x"}
	e.mounted(v)
	for _, c := range e.driver.TakeCalls() {
		if r, ok := c.Request.(interface{ GetPublishContext() map[string]string }); ok {
			assert.Equal(t, cluster.context, r.GetPublishContext())
		}
	}
	assert.Equal(t, []string{"pv-v"}, cluster.expanded)
	e.restart(func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster })
	e.register()
	assert.Len(t, e.VolumesInUse(), 1)
	e.unmounted(v.Pod)
	assert.Empty(t, e.VolumesInUse())

	no := false
	e.setCSIDriver(storagev1.CSIDriverSpec{AttachRequired: &no})
	cluster.err = errors.New("never attached")
	e.mounted(v)
	assert.Empty(t, e.VolumesInUse())
	e.unmounted(v.Pod)
	e.Deregister(t.Context(), e.plugin())
	assert.Empty(t, cluster.drivers)
	e.requireNothingLeft()
}

// blockOf is a volume that is a device.
func blockOf(e *testEnv, pod *corev1.Pod) volume.DriverVolume {
	v := e.volumeOf(pod, "disk")
	mode := corev1.PersistentVolumeBlock
	v.PersistentVolume.Spec.VolumeMode, v.Block = &mode, true
	return v
}

func TestMount_Devices(t *testing.T) {
	var o observer
	e := newEnv(t, o.observe)
	if file, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0); err != nil {
		t.Skip("block devices need root and loop devices: ", err)
	} else {
		require.NoError(t, file.Close())
	}
	v := blockOf(e, newPod("1"))
	path := e.mounted(v)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeDevice)
	r, ok := e.driver.Calls("NodePublishVolume")[0].Request.(*spec.NodePublishVolumeRequest)
	require.True(t, ok)
	assert.NotNil(t, r.GetVolumeCapability().GetBlock())
	assert.Equal(t, filepath.Join(e.dir, "root/plugins/kubernetes.io/csi/volumeDevices/publish/pv-disk/1"), r.GetTargetPath())
	link, err := os.Readlink(filepath.Join(e.dir, "root/pods/1/volumeDevices/kubernetes.io~csi/pv-disk"))
	require.NoError(t, err)
	assert.Equal(t, r.GetTargetPath(), link)
	e.restart(o.observe)
	assert.Equal(t, path, e.mounted(v))
	e.register()
	e.unmounted(v.Pod)
	assert.Equal(t, []string{"unmap_volume kubernetes.io/csi true true", "unmap_device kubernetes.io/csi true true"}, o.take())
	e.requireNothingLeft()
	assert.NoDirExists(t, filepath.Join(e.dir, "root/plugins/kubernetes.io/csi/volumeDevices/pv-disk"))
}

// A file is not passed to a container as a device.
func TestMount_ChecksDevices(t *testing.T) {
	e := newEnv(t, nil)
	v := blockOf(e, newPod("1"))
	e.driver.SetBefore(func(_ context.Context, method string, request any) error {
		if r, ok := request.(*spec.NodePublishVolumeRequest); ok && method == "NodePublishVolume" {
			require.NoError(t, os.WriteFile(r.GetTargetPath(), nil, 0o600))
			return errors.ErrUnsupported
		}
		return nil
	})
	_, err := e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "is not a block device")
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}
