package volume_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/volume"
)

// nfsMount is a mount program: as root it mounts a tmpfs instead of what a server has.
func nfsMount(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mount")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho \"$@\" >> "+path+".calls\n"+script), 0o700))
	return path
}

func TestNFS(t *testing.T) {
	root := t.TempDir()
	script := "for at; do :; done\n"
	if os.Geteuid() == 0 {
		script += "exec mount -t tmpfs nfs-of-the-test \"$at\"\n"
	}
	command := nfsMount(t, script)
	n, err := volume.NewNFS(volume.NFSConfig{Root: root, MountCommand: command})
	require.NoError(t, err)
	claims := boundClaim(nfs())
	claims.volume.Spec.MountOptions = []string{"vers=4.2", "soft"}
	m, err := volume.New(volume.Config{Root: root, Claims: claims, Drivers: []volume.Driver{n}})
	require.NoError(t, err)
	pod := claimPod(viaClaim(true))
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "fd00::1", Path: "/y"}}})
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "inline", MountPath: "/y"})
	volumes, err := m.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	dir := filepath.Join(root, "pods/uid-1/volumes/kubernetes.io~nfs")
	assert.Equal(t, filepath.Join(dir, "pv"), volumes["data"].HostPath)
	assert.True(t, volumes["data"].ReadOnly)
	calls, err := os.ReadFile(command + ".calls")
	require.NoError(t, err)
	assert.Equal(t, "-t nfs -o ro,vers=4.2,soft -- nas:/x "+dir+"/pv\n-t nfs -- [fd00::1]:/y "+dir+"/inline\n", string(calls))
	if os.Geteuid() == 0 {
		_, err = m.Mount(t.Context(), pod, nil)
		require.NoError(t, err)
		calls, err = os.ReadFile(command + ".calls")
		require.NoError(t, err)
		assert.Len(t, string(calls), len("-t nfs -o ro,vers=4.2,soft -- nas:/x "+dir+"/pv\n-t nfs -- [fd00::1]:/y "+dir+"/inline\n"), "they are mounted")
	}
	var usage map[string]runtime.FSUsage
	require.Eventually(t, func() bool { // one that is not measured at once is there the next time
		usage = m.VolumeUsage(pod.UID)
		return len(usage) == 2
	}, time.Minute, time.Millisecond)
	for _, name := range []string{"data", "inline"} {
		var want unix.Statfs_t
		require.NoError(t, unix.Statfs(volumes[name].HostPath, &want))
		assert.Equal(t, want.Blocks*uint64(want.Bsize), usage[name].CapacityBytes, name)
		assert.Equal(t, want.Files, usage[name].Inodes, name)
	}
	require.NoError(t, m.Unmount(t.Context(), pod.UID))
	assert.Empty(t, m.VolumeUsage(pod.UID))
	assert.NoDirExists(t, dir)
	table, err := mounts.Below(root)
	require.NoError(t, err)
	assert.Empty(t, table)
}

func TestNFS_Fails(t *testing.T) {
	_, err := volume.NewNFS(volume.NFSConfig{})
	require.ErrorContains(t, err, "NFSConfig.Root")
	n, err := volume.NewNFS(volume.NFSConfig{Root: t.TempDir(), MountCommand: nfsMount(t, "echo no route to host >&2; exit 32\n")})
	require.NoError(t, err)
	m := driverManager(t, nil, n)
	pod := claimPod(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nas", Path: "/x"}})
	_, err = m.Mount(t.Context(), pod, nil)
	require.ErrorContains(t, err, "mount NFS volume nas:/x: exit status 32: no route to host")
	for _, source := range []corev1.NFSVolumeSource{{Path: "/x"}, {Server: "-o", Path: "/x"}, {Server: "nas", Path: "x"}} {
		pod.Spec.Volumes[0].NFS = &source
		_, err = m.Mount(t.Context(), pod, nil)
		require.ErrorContains(t, err, "server")
	}
	require.Error(t, n.Unmount(t.Context(), ".."))
	require.NoError(t, n.Unmount(t.Context(), "none"))
}
