package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/status"
)

// The status of a pod that was removed while no agent ran is removed, also if the agent was killed before the pod had a
// container: the root directory has nothing of it then.
func TestStatusDir_PodIsRemovedWhileNoAgentRuns(t *testing.T) {
	dir := t.TempDir()
	statuses := filepath.Join(dir, "status")
	left, err := status.NewFileSink(statuses)
	require.NoError(t, err)
	removed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "removed-n", UID: "u1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}},
	}
	require.NoError(t, left.SetStatus(t.Context(), removed, corev1.PodStatus{Phase: corev1.PodPending}))
	other := removed.DeepCopy() // of another root directory
	other.UID = "u2"
	require.NoError(t, left.SetStatus(t.Context(), other, corev1.PodStatus{Phase: corev1.PodSucceeded}))
	manifests := filepath.Join(dir, "manifests")
	require.NoError(t, os.Mkdir(manifests, 0o700))
	f, err := parse([]string{
		"-root-dir", filepath.Join(dir, "root"), "-pod-logs-dir", filepath.Join(dir, "logs"), "-manifests", manifests, "-hostname-override", "n",
		"-listen", "", "-status-dir", statuses,
	}, io.Discard)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, f, io.Discard) }()
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(statuses, "*"))
		return err == nil && len(files) == 1 && filepath.Base(files[0]) == "default_removed-n_u2.json"
	}, time.Minute, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}
