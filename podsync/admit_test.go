package podsync_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// AG-9: a panic of a SoftAdmitter counts as an error of its call.
func TestSync_SoftAdmitterPanics(t *testing.T) {
	for name, observed := range map[string]runtime.Pod{
		"before it runs": {},
		"while it runs":  {Containers: []runtime.Container{{Name: "main", State: runtime.Running}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodPending}
			cfg := newConfig(t, n)
			cfg.SoftAdmitters = []podsync.SoftAdmitter{admitter(func(context.Context) (podspec.AdmitResult, error) { panic("check") })}
			_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), observed)
			require.NoError(t, err)
			require.NotContains(t, n.trace, "kill")
			if observed.CouldHaveRunningContainers() {
				require.Contains(t, n.trace, "apply")
			} else {
				require.Contains(t, n.reports[len(n.reports)-1].Blocked.Message, "panic: check")
			}
		})
	}
}

// SL-3: a SoftAdmitter that ignores its context is called once per pod at a time, and
// again after it has returned.
func TestSync_SoftAdmitterHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		release := make(chan struct{})
		n := &fakeNode{phase: corev1.PodPending}
		cfg := newConfig(t, n)
		cfg.SoftAdmitters = []podsync.SoftAdmitter{admitter(func(context.Context) (podspec.AdmitResult, error) {
			calls.Add(1)
			<-release
			return podspec.Admitted(), nil
		})}
		s := newSyncer(t, cfg)
		for range 50 {
			_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
			require.NoError(t, err)
			require.NotNil(t, n.reports[len(n.reports)-1].Blocked)
			time.Sleep(10 * time.Second)
		}
		require.EqualValues(t, 1, calls.Load())
		close(release)
		synctest.Wait()
		_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
		require.EqualValues(t, 2, calls.Load(), "its late answer is dropped")
		require.Contains(t, n.trace, "apply")
	})
}
