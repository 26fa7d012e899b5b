package podsync_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// pulling is a runtime whose Apply makes a sandbox, and then fails to pull an image.
type pulling struct {
	*fakeNode

	made runtime.Sandbox
}

func (p pulling) Apply(ctx context.Context, pod *corev1.Pod, plan []runtime.Action, m runtime.RunOptions) runtime.ApplyResult {
	m.SandboxReady(p.made)
	return p.fakeNode.Apply(ctx, pod, plan, m)
}

// ST-3: a sandbox is reported during the pull of an image, beside the previous one, which was stopped. What is
// reported after the pull has it too, and what had kept the pod from a sandbox is over.
func TestSync_ReportsSandboxDuringPull(t *testing.T) {
	made := runtime.Sandbox{ID: "s1", Attempt: 1, State: runtime.SandboxReady, IPs: []string{"10.0.0.2"}}
	previous := runtime.Sandbox{ID: "s0", State: runtime.SandboxReady, HostNetwork: true}
	exited := runtime.Container{ID: "c0", Name: "main", SandboxID: "s0", State: runtime.Exited}
	n := &fakeNode{phase: corev1.PodPending, fail: map[string]error{"mount": errBoom}}
	cfg, pod := newConfig(t, n), newTestPod()
	cfg.Runtime = pulling{n, made}
	s := newSyncer(t, cfg)
	observed := runtime.Pod{ObservedAt: time.Now(), Sandboxes: []runtime.Sandbox{previous}, Containers: []runtime.Container{exited}}
	_, err := s.Sync(t.Context(), pod, observed)
	require.ErrorIs(t, err, errBoom)

	n.fail, n.reports = nil, nil
	n.applied.Failures = map[string]runtime.Failure{"main": {Reason: "ErrImagePull", Err: errBoom}}
	_, err = s.Sync(t.Context(), pod, observed)
	require.ErrorIs(t, err, errBoom)
	require.Len(t, n.reports, 3)
	assert.Contains(t, n.reports[0].Failures, "")
	previous.State = runtime.SandboxNotReady
	assert.Equal(t, []runtime.Sandbox{made, previous}, n.reports[1].Observed.Sandboxes)
	assert.Empty(t, n.reports[1].Failures)
	assert.Equal(t, []runtime.Sandbox{made, previous}, n.reports[2].Observed.Sandboxes)
	assert.Equal(t, n.applied.Failures, n.reports[2].Failures)
	assert.Equal(t, runtime.SandboxReady, observed.Sandboxes[0].State, "what was observed is not changed")
}

// A container that may still run in the previous sandbox is not reported beside another one.
func TestSync_ReportsNoSandboxOfStoppedContainers(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	cfg, pod := newConfig(t, n), newTestPod()
	cfg.Runtime = pulling{n, runtime.Sandbox{ID: "s1", Attempt: 1, State: runtime.SandboxReady}}
	observed := runtime.Pod{
		ObservedAt: time.Now(), Sandboxes: []runtime.Sandbox{{ID: "s0"}},
		Containers: []runtime.Container{{ID: "c0", Name: "main", SandboxID: "s0", State: runtime.Unknown}},
	}
	_, err := newSyncer(t, cfg).Sync(t.Context(), pod, observed)
	require.NoError(t, err)
	require.Len(t, n.reports, 1)
	assert.Equal(t, observed.Sandboxes, n.reports[0].Observed.Sandboxes)
}
