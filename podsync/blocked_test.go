package podsync_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// licence is a slow check that a test turns on and off.
type licence struct{ free bool }

func (l *licence) Admit(context.Context, *corev1.Pod) (podspec.AdmitResult, error) {
	if l.free {
		return podspec.Admitted(), nil
	}
	return podspec.Rejected("NoLicence", "all are in use"), nil
}

// blockable is a Syncer with a slow check, in a bubble.
func blockable(t *testing.T, f func(t *testing.T, n *fakeNode, l *licence, sync func(runtime.Pod) (steps []string, out runtime.SyncResult))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, l := &fakeNode{phase: corev1.PodPending}, new(licence)
		cfg := config(t, n)
		cfg.SoftAdmitters = []podsync.SoftAdmitter{l}
		s := newSyncer(t, cfg)
		p := pod()
		f(t, n, l, func(seen runtime.Pod) ([]string, runtime.SyncResult) {
			n.trace, n.told = nil, nil
			out, err := s.Sync(t.Context(), p, seen)
			require.NoError(t, err)
			return n.trace, out
		})
	})
}

func runs(attempt uint32) runtime.Pod {
	return runtime.Pod{
		Sandboxes:  []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}},
		Containers: []runtime.Container{{Name: "main", State: runtime.Running, Attempt: attempt, SandboxID: "s"}},
	}
}

func ended(attempt uint32) runtime.Pod {
	return runtime.Pod{
		Sandboxes:  []runtime.Sandbox{{ID: "s"}},
		Containers: []runtime.Container{{Name: "main", State: runtime.Exited, ExitCode: 143, Attempt: attempt, SandboxID: "s"}},
	}
}

// PS-1, SL-3: a pod that is refused is told as Blocked in every report, once as an
// event, and costs nothing more.
func TestSyncer_BlockedIsKept(t *testing.T) {
	blockable(t, func(t *testing.T, n *fakeNode, _ *licence, sync func(runtime.Pod) ([]string, runtime.SyncResult)) {
		steps, _ := sync(runtime.Pod{})
		require.Equal(t, []string{"status", "status"}, steps)
		require.Equal(t, "NoLicence: all are in use", n.told[1].Blocked.Message)
		for range 3 {
			steps, out := sync(runtime.Pod{})
			require.Equal(t, []string{"status"}, steps)
			require.NotNil(t, n.told[0].Blocked)
			require.Equal(t, time.Now().Add(10*time.Second), out.RequeueAt)
			require.True(t, out.Unchanged)
		}
		require.Len(t, n.events, 1)
	})
}

// PS-1: a pod that is refused while it runs is stopped; what that leaves is removed,
// and it starts over when it is admitted.
func TestSyncer_BlockedPodStartsOver(t *testing.T) {
	blockable(t, func(t *testing.T, n *fakeNode, l *licence, sync func(runtime.Pod) ([]string, runtime.SyncResult)) {
		steps, _ := sync(runs(2))
		require.Equal(t, []string{"status", "status", "kill"}, steps)
		steps, _ = sync(runtime.Pod{Sandboxes: runs(2).Sandboxes})
		require.Equal(t, []string{"status", "kill"}, steps, "its sandbox is stopped too")
		steps, _ = sync(ended(2))
		require.Equal(t, []string{"status", "remove containers"}, steps)
		steps, _ = sync(runtime.Pod{})
		require.Equal(t, []string{"status"}, steps)

		l.free = true
		steps, _ = sync(runtime.Pod{})
		require.Contains(t, steps, "apply")
		require.NotNil(t, n.told[0].Blocked)
		require.Nil(t, n.told[1].Blocked, "that it is admitted is told before its images are pulled")
		start := n.plan[len(n.plan)-1]
		require.Equal(t, runtime.StartContainer, start.Type)
		require.EqualValues(t, 3, start.Attempt, "a former attempt has that number, and its log")

		sync(runs(3))
		require.Len(t, n.told, 1)
		require.Nil(t, n.told[0].Blocked)
	})
}

// PS-1: a pod that is admitted before all of it was stopped runs on; one that was
// stopped, and not yet cleared away, is cleared away first.
func TestSyncer_AdmittedInBetween(t *testing.T) {
	for name, seen := range map[string]runtime.Pod{"it runs on": runs(0), "it has been stopped": ended(0)} {
		t.Run(name, func(t *testing.T) {
			blockable(t, func(t *testing.T, n *fakeNode, l *licence, sync func(runtime.Pod) ([]string, runtime.SyncResult)) {
				sync(runs(0))
				l.free = true
				steps, out := sync(seen)
				if seen.CouldHaveRunningContainers() {
					require.NotContains(t, steps, "remove containers")
					require.Nil(t, n.told[len(n.told)-1].Blocked)
					return
				}
				require.Equal(t, []string{"status", "remove containers"}, steps)
				require.NotNil(t, n.told[0].Blocked, "or its end would count")
				require.False(t, out.RequeueAt.After(time.Now()))
				steps, _ = sync(runtime.Pod{})
				require.Contains(t, steps, "apply")
			})
		})
	}
}

// PS-1, AG-4: a pod that a former process was stopping goes on to wait.
func TestSyncer_BlockedByAFormerProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		told   corev1.PodStatus
		waited bool
	}{
		"it waited":          {corev1.PodStatus{Phase: corev1.PodPending, Reason: "Blocked", Message: "NoLicence: then"}, true},
		"it ran":             {corev1.PodStatus{Phase: corev1.PodRunning}, false},
		"it waited for more": {corev1.PodStatus{Phase: corev1.PodPending, Reason: "Other"}, false},
		"nothing is known":   {corev1.PodStatus{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			blockable(t, func(t *testing.T, n *fakeNode, l *licence, sync func(runtime.Pod) ([]string, runtime.SyncResult)) {
				n.before, l.free = tc.told, true
				steps, _ := sync(ended(0))
				if !tc.waited {
					require.Nil(t, n.told[0].Blocked)
					require.NotContains(t, steps, "remove containers")
					return
				}
				require.Equal(t, "NoLicence: then", n.told[0].Blocked.Message)
				require.Contains(t, steps, "remove containers")
				require.NotContains(t, steps, "apply")
			})
		})
	}
}
