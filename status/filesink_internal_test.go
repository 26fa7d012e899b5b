package status

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// ST-9: if the directory cannot be synced the file has the new content already, so that the old one must be
// written once more when the status changes back.
func TestFileSink_FailedSync(t *testing.T) {
	s, err := NewFileSink(t.TempDir())
	require.NoError(t, err)
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "ns", "p", "uid-1"
	require.NoError(t, s.SetStatus(t.Context(), pod, corev1.PodStatus{Phase: corev1.PodRunning}))
	broken := s.dir.root
	require.NoError(t, broken.self.Close())
	require.ErrorIs(t, s.SetStatus(t.Context(), pod, corev1.PodStatus{Phase: corev1.PodPending}), os.ErrClosed)
	s.dir.forget(broken)
	require.NoError(t, s.SetStatus(t.Context(), pod, corev1.PodStatus{Phase: corev1.PodRunning}))
	pods, err := s.Load()
	require.NoError(t, err)
	require.Len(t, pods, 1)
	assert.Equal(t, corev1.PodRunning, pods[0].Status.Phase)
}

// What a crash has left of a pod that is gone is removed, and nothing that is being written.
func TestFileSink_RemovesWhatACrashLeft(t *testing.T) {
	dir := t.TempDir()
	s, err := NewFileSink(dir)
	require.NoError(t, err)
	old := time.Now().Add(-2 * time.Minute)
	for name, at := range map[string]time.Time{".ns_p_old.json.tmp": old, ".ns_p_future.json.tmp": time.Now().Add(time.Hour), ".ns_p_new.json.tmp": time.Now(), ".other": old} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte("half"), 0o600))
		require.NoError(t, os.Chtimes(file, at, at))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".dir.json.tmp"), 0o700))
	require.NoError(t, os.Chtimes(filepath.Join(dir, ".dir.json.tmp"), old, old))
	_, err = s.Load()
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	assert.Equal(t, []string{".dir.json.tmp", ".ns_p_new.json.tmp", ".other"}, left)
}
