package volume_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/hooktest"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/volume"
)

func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "Volumes", func(first volume.Hooks, log *slog.Logger, next volume.Hooks) volume.Hooks {
		return first.Join(log, next)
	})
}

// observed has what hooks were called with.
type observed []string

func (o *observed) take() []string {
	calls := *o
	*o = nil
	return calls
}

func (o *observed) hooks() volume.Hooks {
	return volume.Hooks{
		OperationEnded: func(op volume.Operation, _ time.Duration, err error) {
			*o = append(*o, fmt.Sprint(op.Name, " ", op.Kind.Plugin, op.Kind.Driver, " ", err == nil))
			panic("defect of the application")
		},
		Mounted: func(kind volume.Kind, _ time.Duration) { *o = append(*o, "mounted "+kind.Plugin) },
	}
}

// AG-5: a volume that is mounted counts once, those whose files are brought up to date at each sync; each is unmounted once.
func TestHooks_Operations(t *testing.T) {
	var calls observed
	root, objects := t.TempDir(), objectMap{}
	m, err := volume.New(volume.Config{Root: root, Unprivileged: true, Hooks: calls.hooks()})
	require.NoError(t, err)
	pod := claimPod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}, DefaultMode: new(int32(0o644))}}},
		corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: root}}},
		corev1.Volume{Name: "unused", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "unsupported", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}},
	)
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "config", MountPath: "/c"}, corev1.VolumeMount{Name: "host", MountPath: "/h"}, corev1.VolumeMount{Name: "unsupported", MountPath: "/u"})

	_, err = m.Mount(t.Context(), pod, objects)
	require.Error(t, err)
	require.Equal(t, []string{
		"volume_mount kubernetes.io/empty-dir true", "mounted kubernetes.io/empty-dir", "volume_mount kubernetes.io/configmap false",
		"volume_mount kubernetes.io/host-path true", "mounted kubernetes.io/host-path",
	}, calls.take(), "a volume that nothing can mount is no operation")
	assert.Equal(t, map[volume.Kind]volume.Count{
		{Plugin: "kubernetes.io/empty-dir"}: {Desired: 1, Mounted: 1}, {Plugin: "kubernetes.io/configmap"}: {Desired: 1}, {Plugin: "kubernetes.io/host-path"}: {Desired: 1, Mounted: 1},
	}, m.Counts())

	objects[podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "config"}] = podspec.Object{Data: map[string][]byte{"a": []byte("b")}}
	pod.Spec.Volumes, c.VolumeMounts = pod.Spec.Volumes[:4], c.VolumeMounts[:3]
	_, err = m.Mount(t.Context(), pod, objects)
	require.NoError(t, err)
	require.Equal(t, []string{"volume_mount kubernetes.io/configmap true", "mounted kubernetes.io/configmap"}, calls.take())
	_, err = m.Mount(t.Context(), pod, objects)
	require.NoError(t, err)
	require.Equal(t, []string{"volume_mount kubernetes.io/configmap true"}, calls.take())

	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Mount(stopped, pod, objects)
	require.Error(t, err)
	require.Empty(t, calls.take(), "an agent that stops has no failures")

	require.NoError(t, m.Unmount(t.Context(), pod.UID))
	require.ElementsMatch(t, []string{
		"volume_unmount kubernetes.io/empty-dir true", "volume_unmount kubernetes.io/configmap true", "volume_unmount kubernetes.io/host-path true",
	}, calls.take())
	require.Empty(t, m.Counts())
	require.NoError(t, m.Unmount(t.Context(), pod.UID))
	require.Empty(t, calls.take())
}

// AG-5: a volume of a driver is reported when it is mounted. The driver reports the rest itself, and what keeps it from unmounting
// is no failure of other volumes.
func TestHooks_Drivers(t *testing.T) {
	var calls observed
	d := &fakeDriver{err: errors.New("no answer")}
	m, err := volume.New(volume.Config{Root: t.TempDir(), Claims: boundClaim(nfs()), Drivers: []volume.Driver{d}, Unprivileged: true, Hooks: calls.hooks()})
	require.NoError(t, err)
	pod := claimPod(viaClaim(false))
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "scratch", MountPath: "/s"})
	_, err = m.Mount(t.Context(), pod, nil)
	require.Error(t, err)
	require.Equal(t, []string{"volume_mount kubernetes.io/nfs false", "volume_mount kubernetes.io/empty-dir true", "mounted kubernetes.io/empty-dir"}, calls.take())
	d.err = nil
	_, err = m.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"volume_mount kubernetes.io/nfs true", "mounted kubernetes.io/nfs"}, calls.take())

	d.err = errors.New("no answer")
	require.Error(t, m.Unmount(t.Context(), pod.UID))
	require.Empty(t, calls.take())
	assert.Equal(t, map[volume.Kind]volume.Count{{Plugin: "kubernetes.io/nfs"}: {Mounted: 1}, {Plugin: "kubernetes.io/empty-dir"}: {Mounted: 1}}, m.Counts())
	d.err = nil
	require.NoError(t, m.Unmount(t.Context(), pod.UID))
	require.Equal(t, []string{"volume_unmount kubernetes.io/empty-dir true"}, calls.take())
	require.Empty(t, m.Counts())
}

// AG-5: volumes have the kubelet's names of what mounts them.
func TestHooks_Kinds(t *testing.T) {
	var calls observed
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for want, pv := range map[string]corev1.PersistentVolumeSource{
		"volume_mount kubernetes.io/local-volume true":     {Local: &corev1.LocalVolumeSource{Path: dir}},
		"volume_mount kubernetes.io/host-path false":       {HostPath: &corev1.HostPathVolumeSource{Path: file, Type: new(corev1.HostPathDirectory)}},
		"volume_mount kubernetes.io/csidisk.example false": {CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example", VolumeHandle: "1"}},
	} {
		m, err := volume.New(volume.Config{Root: t.TempDir(), Claims: boundClaim(pv), Drivers: []volume.Driver{&csiDriver{fakeDriver{err: errors.New("no answer")}}}, Unprivileged: true, Hooks: calls.hooks()})
		require.NoError(t, err)
		_, _ = m.Mount(t.Context(), claimPod(viaClaim(false)), nil)
		require.Equal(t, want, calls.take()[0])
	}
	m, err := volume.New(volume.Config{Root: t.TempDir(), Drivers: []volume.Driver{&csiDriver{fakeDriver{err: errors.New("no answer")}}}, Unprivileged: true, Hooks: calls.hooks()})
	require.NoError(t, err)
	inline := claimPod(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "inline.example"}})
	_, _ = m.Mount(t.Context(), inline, nil)
	require.Equal(t, []string{"volume_mount kubernetes.io/csiinline.example false"}, calls.take())
	device := claimPod(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "inline.example"}})
	device.Spec.Containers[0].VolumeMounts = nil
	device.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
	_, _ = m.Mount(t.Context(), device, nil)
	require.Equal(t, []string{"map_volume kubernetes.io/csiinline.example false"}, calls.take())
}

// csiDriver is a driver for csi.
type csiDriver struct{ fakeDriver }

func (csiDriver) Sources() []string { return []string{"csi"} }

// objectMap has objects by their names.
type objectMap map[podspec.Ref]podspec.Object

func (m objectMap) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	if o, ok := m[ref]; ok {
		return o, nil
	}
	return podspec.Object{}, podspec.ErrObjectNotFound
}
