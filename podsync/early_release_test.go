package podsync_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// earlyReleaser is an injector of something that others get.
type earlyReleaser struct {
	injector
	unreleased bool
}

func (h *earlyReleaser) HasUnreleased(*corev1.Pod) bool { return h.unreleased }

func (h *earlyReleaser) Release(ctx context.Context, uid types.UID) error {
	err := h.injector.Release(ctx, uid)
	if err == nil {
		h.unreleased = false
	}
	return err
}

// A pod with devices of a claim is not reported as ended before they are released: the cluster would give them to another pod
// meanwhile. That holds for a pod whose containers have exited and for one that is terminated.
func TestSyncer_ReleasesBeforeTheEndIsReported(t *testing.T) {
	for _, tt := range []struct {
		name        string
		state       runtime.ContainerState
		termination runtime.Termination
		want        corev1.PodPhase
	}{
		{"its containers have exited", runtime.Exited, runtime.Termination{}, corev1.PodSucceeded},
		{"evicted", runtime.Running, runtime.Termination{Reason: "Evicted"}, corev1.PodFailed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodRunning}
			cfg := newConfig(t, n)
			statuses, err := status.New(status.Config{})
			require.NoError(t, err)
			cfg.Statuses = statuses
			h := &earlyReleaser{injector: injector{name: "A", value: "1", err: errors.New("the driver is away")}, unreleased: true}
			cfg.Injectors = []podsync.Injector{h}
			s := newSyncer(t, cfg)
			pod := newTestPod()
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			phase := func() corev1.PodPhase {
				st, _ := statuses.Get(pod.UID)
				return st.Phase
			}
			observed := podWith(runtime.Injection{Env: map[string]string{"A": "1"}})
			observed.Containers[0].State = tt.state
			result, err := s.Sync(t.Context(), pod, observed)
			require.NoError(t, err)
			assert.Equal(t, tt.state == runtime.Exited, result.Terminal)
			assert.Equal(t, corev1.PodRunning, phase())

			n.observed = podWith(runtime.Injection{Env: map[string]string{"A": "1"}})
			n.observed.ObservedAt, n.observed.Containers[0].State = time.Now(), runtime.Exited
			require.ErrorContains(t, s.Terminate(t.Context(), pod, observed, tt.termination), "the driver is away")
			assert.Equal(t, corev1.PodRunning, phase())
			h.err = nil
			require.NoError(t, s.Terminate(t.Context(), pod, observed, tt.termination))
			assert.Equal(t, tt.want, phase())
		})
	}
}

// A pod that is stopped with the node starts again, and keeps what it has. If it has completed meanwhile, that is reported by the next
// agent, which releases it first.
func TestSyncer_DrainedPodsReleaseNothing(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	cfg := newConfig(t, n)
	statuses, err := status.New(status.Config{})
	require.NoError(t, err)
	cfg.Statuses = statuses
	h := &earlyReleaser{injector: injector{name: "A", err: errors.New("the driver is away")}, unreleased: true}
	cfg.Injectors = []podsync.Injector{h}
	pod := newTestPod()
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	running := podWith(runtime.Injection{})
	n.observed = podWith(runtime.Injection{})
	n.observed.ObservedAt, n.observed.Containers[0].State = time.Now(), runtime.Exited
	require.NoError(t, newSyncer(t, cfg).Terminate(t.Context(), pod, running, runtime.Termination{Drained: true}))
	st, _ := statuses.Get(pod.UID)
	assert.Equal(t, corev1.PodRunning, st.Phase)
	assert.True(t, h.unreleased)
}
