package kubeapi_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SV-10: a pod that has filled the disk can be deleted.
func TestStore_DeletionOnAFullDisk(t *testing.T) {
	e := newEnv(t, nil)
	if err := unix.Mount("tmpfs", e.dir, "tmpfs", 0, "size=1m"); errors.Is(err, unix.EPERM) {
		t.Skip("mounting takes root")
	} else {
		require.NoError(t, err)
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(e.dir, unix.MNT_DETACH)) })
	e.create("a")
	e.create("b")
	fill := func() {
		require.ErrorIs(t, os.WriteFile(filepath.Join(e.dir, "data"), make([]byte, 2<<20), 0o600), unix.ENOSPC)
	}
	fill()
	client := e.client.CoreV1().Pods("shop")
	_, err := client.Create(t.Context(), newPod("c"), metav1.CreateOptions{})
	require.ErrorContains(t, err, "no space left on device")

	require.NoError(t, client.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	pod, err := client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotNil(t, pod.DeletionTimestamp)
	e.delivered("a", func(pod *corev1.Pod) bool { return pod != nil && pod.DeletionTimestamp != nil })
	require.NoError(t, e.store.DeleteStatus(t.Context(), pod))
	_, err = client.Get(t.Context(), "a", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)

	fill() // what the file of a had
	var none int64
	require.NoError(t, client.Delete(t.Context(), "b", metav1.DeleteOptions{GracePeriodSeconds: &none}))
	assert.Empty(t, load(t, e.dir).Pods)
}
