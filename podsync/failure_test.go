package podsync_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// PS-2: the pod is requeued at the end of a planned back-off.
func TestSync_PlannedBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPod()
		dead := runtime.Container{
			ID: "c", Name: "main", SandboxID: "s", State: runtime.Exited, ExitCode: 1, Attempt: 1, BackOffStep: 1,
			Finished: time.Now().Add(-2 * time.Second), Hash: runtime.HashContainer(&p.Spec.Containers[0]),
		}
		observed := runtime.Pod{Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}}, Containers: []runtime.Container{dead}}
		n := &fakeNode{phase: corev1.PodRunning}
		out, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), p, observed)
		require.NoError(t, err)
		require.True(t, out.Unchanged)
		require.Equal(t, 8*time.Second, time.Until(out.RequeueAt))
		require.NotContains(t, n.trace, "apply")
	})
}

// PS-2: a back-off of the runtime does not fail the sync.
func TestSync_BackOffOfRuntimeIsNotAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{phase: corev1.PodPending, applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{
			"main": {Reason: "ImagePullBackOff", Until: time.Now().Add(time.Minute), Err: fmt.Errorf("pull: %w", runtime.ErrBackOff)},
		}}}
		out, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Until(out.RequeueAt))
	})
}

// PS-1: a failure is reported again only when its message changes.
func TestSync_ReportsFailureWhenItChanges(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	s := newSyncer(t, newConfig(t, n))
	reported := func(message string) (reports int) {
		before := len(n.reports)
		n.applied = runtime.ApplyResult{Failures: map[string]runtime.Failure{"main": {Reason: "ErrImagePull", Message: message, Until: time.Now().Add(time.Hour)}}}
		_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
		return len(n.reports) - before
	}
	require.Equal(t, 2, reported("not found"), "the observed state, and the failure")
	require.Equal(t, 1, reported("not found"))
	require.Equal(t, 2, reported("connection refused"))
	require.Equal(t, "connection refused", n.reports[len(n.reports)-1].Failures["main"].Message)
}
