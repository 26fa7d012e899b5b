package podsync_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/hooktest"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// AG-9: joined hooks call all, in order, whichever of them panics.
func TestHooks_JoinCallsAll(t *testing.T) {
	hooktest.RequireJoins(t, "PodSync", podsync.Hooks.Join)
}

// Mounting is reported when it changes something: the first time, and around errors.
func TestHooks_VolumesMounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{phase: corev1.PodRunning, fail: map[string]error{}}
		n.enter = func(step string) {
			if step == "mount" {
				time.Sleep(3 * time.Second)
			}
		}
		var calls []string
		cfg := newConfig(t, n)
		cfg.Hooks.VolumesMounted = func(pod *corev1.Pod, volumes int, duration time.Duration, err error) {
			calls = append(calls, fmt.Sprint(pod.Name, " ", volumes, " ", duration, " ", err))
		}
		s := newSyncer(t, cfg)
		sync := func() error {
			_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
			return err
		}
		n.fail["mount"] = errors.New("no such disk")
		for range 2 {
			require.ErrorContains(t, sync(), "no such disk")
		}
		delete(n.fail, "mount")
		for range 3 {
			require.NoError(t, sync())
		}
		n.fail["mount"] = errors.New("disk lost")
		require.ErrorContains(t, sync(), "disk lost")
		delete(n.fail, "mount")
		for range 2 {
			require.NoError(t, sync())
		}
		assert.Equal(t, []string{
			"web 1 3s no such disk", "web 1 3s no such disk", "web 1 3s <nil>", "web 1 3s disk lost", "web 1 3s <nil>",
		}, calls)
	})
}

// Each exit and each back-off is one call, however often a sync observes it. A hook that
// panics harms neither the sync nor the log.
func TestHooks_ExitsAndBackOffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{phase: corev1.PodRunning}
		var calls []string
		cfg := newConfig(t, n)
		cfg.Hooks = podsync.Hooks{
			ContainerExited: func(pod *corev1.Pod, c runtime.Container) {
				calls = append(calls, fmt.Sprint(pod.Name, " ", c.ID, " exited ", c.ExitCode))
				panic("defect of the application")
			},
			BackOffStarted: func(_ *corev1.Pod, container string, f runtime.Failure) {
				calls = append(calls, fmt.Sprint(container, " ", f.Reason, " for ", time.Until(f.Until)))
				panic("defect of the application")
			},
		}
		s := newSyncer(t, cfg)
		first, second := crashed("c1", 1), crashed("c2", 2)
		for _, observed := range []runtime.Pod{withContainers(first), withContainers(first), withContainers(second, first)} {
			_, err := s.Sync(t.Context(), newTestPod(), observed)
			require.NoError(t, err)
		}
		assert.Equal(t, []string{
			"web c1 exited 3", "main CrashLoopBackOff for 10s", "web c2 exited 3", "main CrashLoopBackOff for 20s",
		}, calls)
		require.Len(t, n.events, 2, "kubectl describe shows back-offs as those of a kubelet")
		assert.Equal(t, "Warning BackOff Back-off restarting failed container main in pod web_default(uid-1)",
			n.events[0].Type+" "+n.events[0].Reason+" "+n.events[0].Message)
	})
}
