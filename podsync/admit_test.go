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

// AG-9: a panic of a slow check is an answer that it has not given.
func TestSlowAdmission_Panic(t *testing.T) {
	for name, seen := range map[string]runtime.Pod{
		"before it runs": {},
		"while it runs":  {Containers: []runtime.Container{{Name: "main", State: runtime.Running}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodPending}
			cfg := config(t, n)
			cfg.SoftAdmitters = []podsync.SoftAdmitter{admitter(func(context.Context) (podspec.AdmitResult, error) { panic("check") })}
			_, err := newSyncer(t, cfg).Sync(t.Context(), pod(), seen)
			require.NoError(t, err)
			require.NotContains(t, n.trace, "kill")
			if seen.CouldHaveRunningContainers() {
				require.Contains(t, n.trace, "apply")
			} else {
				require.Contains(t, n.told[len(n.told)-1].Blocked.Message, "panic: check")
			}
		})
	}
}

// SL-3: a slow check that does not heed its context is under way once for a pod, and
// asked again when it has come back.
func TestSlowAdmission_Hung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		release := make(chan struct{})
		n := &fakeNode{phase: corev1.PodPending}
		cfg := config(t, n)
		cfg.SoftAdmitters = []podsync.SoftAdmitter{admitter(func(context.Context) (podspec.AdmitResult, error) {
			calls.Add(1)
			<-release
			return podspec.Admitted(), nil
		})}
		s := newSyncer(t, cfg)
		for range 50 {
			_, err := s.Sync(t.Context(), pod(), runtime.Pod{})
			require.NoError(t, err)
			require.NotNil(t, n.told[len(n.told)-1].Blocked)
			time.Sleep(10 * time.Second)
		}
		require.EqualValues(t, 1, calls.Load())
		close(release)
		synctest.Wait()
		_, err := s.Sync(t.Context(), pod(), runtime.Pod{})
		require.NoError(t, err)
		require.EqualValues(t, 2, calls.Load(), "its late answer goes to nobody")
		require.Contains(t, n.trace, "apply")
	})
}
