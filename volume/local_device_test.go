package volume

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// blockDevice returns the path of a block device, which the test may not be able to open.
func blockDevice(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob("/dev/*")
	require.NoError(t, err)
	i := slices.IndexFunc(paths, func(path string) bool {
		info, err := os.Lstat(path)
		return err == nil && hasType(info.Mode(), corev1.HostPathBlockDev)
	})
	if i < 0 {
		t.Skip("this machine has no block device")
	}
	return paths[i]
}

// The capacity of a local volume that is a device is reported, as by a kubelet.
func TestLocal_MeasuresDevices(t *testing.T) {
	path := blockDevice(t)
	m := &Manager{cfg: Config{Root: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}, mount: noMounts{}}
	m.meter = meter{log: m.cfg.Logger, statfs: func(measured string) (runtime.FSUsage, error) {
		assert.Equal(t, path, measured)
		return runtime.FSUsage{At: time.Now(), CapacityBytes: 512}, nil
	}}
	pod := &corev1.Pod{}
	pod.UID = "uid"
	mounted, err := m.local(context.Background(), &DriverVolume{
		Pod: pod, Volume: &corev1.Volume{Name: "data"}, Block: true,
		PersistentVolume: &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}}},
	})
	require.NoError(t, err)
	require.Equal(t, path, mounted.HostPath)
	require.Eventually(t, func() bool { return m.VolumeUsage("uid")["data"].CapacityBytes == 512 }, time.Minute, time.Millisecond)

	// What the file system of the device's node has is not the size of the device.
	usage, err := localUsage(path)
	if err == nil {
		assert.Zero(t, usage.AvailableBytes)
		assert.Zero(t, usage.Inodes)
	} else {
		require.ErrorIs(t, err, os.ErrPermission)
	}
}
