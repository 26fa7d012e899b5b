package podsync_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// podRuntime runs pods and not containers.
type podRuntime struct {
	*fakeNode
	result runtime.SyncResult
	err    error
}

func (r *podRuntime) SyncPod(context.Context, *corev1.Pod, runtime.Pod) (runtime.SyncResult, error) {
	_ = r.step("sync pod")
	return r.result, r.err
}

func newPodRuntime(t *testing.T) (*podRuntime, podsync.Config) {
	t.Helper()
	n := &podRuntime{fakeNode: &fakeNode{phase: corev1.PodPending}}
	cfg := newConfig(t, n.fakeNode)
	cfg.Runtime = n
	return n, cfg
}

func reasons(events []*corev1.Event) (out []string) {
	for _, e := range events {
		out = append(out, e.Reason)
	}
	return out
}

// RT-20: nothing is planned or prepared for a runtime that runs pods.
func TestSync_PodSyncer(t *testing.T) {
	n, cfg := newPodRuntime(t)
	n.result = runtime.SyncResult{Unchanged: true, RequeueAt: time.Unix(1000, 0)}
	result, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	assert.Equal(t, n.result.Unchanged, result.Unchanged)
	assert.Equal(t, n.result.RequeueAt, result.RequeueAt)
	assert.Equal(t, []string{"status", "sync pod"}, n.trace)
	assert.Empty(t, n.events)
}

// RT-20: a pod that cannot be created yet is reported, and the next success clears it.
func TestSync_PodSyncerFails(t *testing.T) {
	n, cfg := newPodRuntime(t)
	s := newSyncer(t, cfg)
	n.err = errors.New("no quota")
	for range 2 {
		_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.ErrorIs(t, err, n.err)
	}
	assert.Equal(t, []string{"FailedCreatePod"}, reasons(n.events), "once")
	last := n.reports[len(n.reports)-1].Failures[""]
	assert.Equal(t, "CreatePodError", last.Reason)
	assert.Equal(t, "no quota", last.Message)
	assert.Empty(t, n.kills)
	n.err = nil
	for range 2 {
		_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
	}
	assert.Empty(t, n.reports[len(n.reports)-1].Failures)
}

// RT-20: a pod that can never be created fails.
func TestSync_PodSyncerRejects(t *testing.T) {
	n, cfg := newPodRuntime(t)
	n.err = fmt.Errorf("no such machine: %w", runtime.ErrInvalid)
	pod := newTestPod()
	pod.Spec.TerminationGracePeriodSeconds = new(int64(9))
	_, err := newSyncer(t, cfg).Sync(t.Context(), pod, runtime.Pod{})
	require.NoError(t, err)
	assert.Equal(t, []runtime.Termination{{GracePeriod: 9 * time.Second, Reason: "CreatePodError", Message: n.err.Error()}}, n.kills)
	assert.Equal(t, []string{"FailedCreatePod"}, reasons(n.events))

	cfg.PodKiller = nil
	_, err = newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.ErrorIs(t, err, runtime.ErrInvalid, "it is tried again")
}

// RT-20: a pod that exists runs on with its old spec, also if the new one is invalid.
func TestSync_PodSyncerCannotUpdate(t *testing.T) {
	n, cfg := newPodRuntime(t)
	n.phase = corev1.PodRunning
	n.err = fmt.Errorf("no such machine: %w", runtime.ErrInvalid)
	_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{Object: newTestPod()})
	require.ErrorIs(t, err, n.err)
	assert.Equal(t, []string{"FailedUpdatePod"}, reasons(n.events))
	assert.Empty(t, n.kills)
	assert.Len(t, n.reports, 1)
}

// A cancelled call is not a failure of the pod.
func TestSync_PodSyncerCancelled(t *testing.T) {
	n, cfg := newPodRuntime(t)
	n.err = context.Canceled
	ctx, cancel := context.WithCancel(t.Context())
	n.enter = func(step string) {
		if step == "sync pod" {
			cancel()
		}
	}
	_, err := newSyncer(t, cfg).Sync(ctx, newTestPod(), runtime.Pod{})
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, n.events)
	assert.Len(t, n.reports, 1)
}

// RT-20: the loss of a pod is an event, once for each loss.
func TestSync_PodSyncerLosesPod(t *testing.T) {
	n, cfg := newPodRuntime(t)
	s := newSyncer(t, cfg)
	exists := runtime.Pod{Object: newTestPod()}
	for _, observed := range []runtime.Pod{{}, exists, {}, {}, exists, {}} {
		_, err := s.Sync(t.Context(), newTestPod(), observed)
		require.NoError(t, err)
	}
	assert.Equal(t, []string{"PodLost", "PodLost"}, reasons(n.events))
	assert.Contains(t, n.events[0].Message, "created again")
}
