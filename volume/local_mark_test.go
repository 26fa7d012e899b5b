package volume

import (
	"context"
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// localVolume is a local PersistentVolume of a pod with the group of this process.
func localVolume(uid types.UID, path string) *DriverVolume {
	group := int64(os.Getegid())
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: path}
	return &DriverVolume{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: uid},
			Spec:       corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroup: &group}},
		},
		Volume: &corev1.Volume{Name: "data"}, PersistentVolume: pv,
	}
}

// A pod waits while the files get the group of another one, and does it itself if that fails.
func TestManager_LocalVolumesAreSetUpByOnePodAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, dir := manager(t, nil), t.TempDir()
		require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
		mode := func() os.FileMode {
			info, err := os.Stat(dir + "/file")
			require.NoError(t, err)
			return info.Mode()
		}
		second := localVolume("uid-2", dir)
		unlock := m.localLocks.lock(dir) // the first
		_, err := m.localLocks.lockContext(t.Context(), "/other")
		require.NoError(t, err, "that is another volume")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		mount := func() {
			_, err := m.local(ctx, second)
			done <- err
		}
		go mount()
		synctest.Wait()
		require.Empty(t, done)
		require.Equal(t, os.FileMode(0o600), mode())
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)

		ctx = t.Context()
		go mount()
		synctest.Wait()
		require.Empty(t, done)
		unlock()
		require.NoError(t, <-done)
		require.Equal(t, os.FileMode(0o660), mode())
	})
}

func TestManager_LocalVolumesHaveSafeNames(t *testing.T) {
	m := manager(t, nil)
	v := localVolume("uid-1", t.TempDir())
	v.PersistentVolume.Name = ".."
	_, err := m.local(t.Context(), v)
	require.ErrorIs(t, err, ErrUnsafe)
}

// A pod whose directory cannot be read keeps others from a local volume only if their group would be new to it, and
// no other pod is known to have it.
func TestManager_LocalVolumesBesideAnUnreadablePod(t *testing.T) {
	m, dir := manager(t, nil), t.TempDir()
	first := localVolume("uid-1", dir)
	_, err := m.local(t.Context(), first)
	require.NoError(t, err)
	unreadable := m.cfg.Root + "/pods/uid-0/volumes"
	require.NoError(t, os.MkdirAll(m.cfg.Root+"/pods/uid-0", 0o700))
	require.NoError(t, os.Symlink(unreadable, unreadable))
	t.Cleanup(func() { require.NoError(t, os.Remove(unreadable)) })
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
	unchanged := func() {
		t.Helper()
		info, err := os.Stat(dir + "/file")
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}

	_, err = m.local(t.Context(), localVolume("uid-2", dir))
	require.NoError(t, err, "a pod that can be read has it")
	unchanged()
	for _, uid := range []types.UID{"uid-1", "uid-2"} {
		require.NoError(t, m.Unmount(t.Context(), uid))
	}
	_, err = m.local(t.Context(), localVolume("uid-3", dir))
	require.NoError(t, err, "it has its group already")
	unchanged()
	require.NoError(t, m.Unmount(t.Context(), "uid-3"))

	require.NoError(t, os.Chmod(dir, 0o700)) // without the bits of a group
	_, err = m.local(t.Context(), localVolume("uid-4", dir))
	require.ErrorContains(t, err, "may have "+dir+" with another group")
	require.ErrorContains(t, err, "uid-0")
	unchanged()
}
