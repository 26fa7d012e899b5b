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

// licence is a SoftAdmitter that admits pods while it is free.
type licence struct{ free bool }

func (l *licence) Admit(context.Context, *corev1.Pod) (podspec.AdmitResult, error) {
	if l.free {
		return podspec.Admitted(), nil
	}
	return podspec.Rejected("NoLicence", "all are in use"), nil
}

// testBlocked runs f in a bubble, with a Syncer that has a SoftAdmitter.
func testBlocked(t *testing.T, f func(t *testing.T, n *fakeNode, l *licence, sync func(runtime.Pod) (steps []string, out runtime.SyncResult))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, l := &fakeNode{phase: corev1.PodPending}, new(licence)
		cfg := newConfig(t, n)
		cfg.SoftAdmitters = []podsync.SoftAdmitter{l}
		s := newSyncer(t, cfg)
		p := newTestPod()
		f(t, n, l, func(observed runtime.Pod) ([]string, runtime.SyncResult) {
			n.trace, n.reports = nil, nil
			out, err := s.Sync(t.Context(), p, observed)
			require.NoError(t, err)
			return n.trace, out
		})
	})
}

func runningPod(attempt uint32) runtime.Pod {
	return runtime.Pod{
		Sandboxes:  []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}},
		Containers: []runtime.Container{{Name: "main", State: runtime.Running, Attempt: attempt, SandboxID: "s"}},
	}
}

func exitedPod(attempt uint32) runtime.Pod {
	return runtime.Pod{
		Sandboxes:  []runtime.Sandbox{{ID: "s"}},
		Containers: []runtime.Container{{Name: "main", State: runtime.Exited, ExitCode: 143, Attempt: attempt, SandboxID: "s"}},
	}
}

// PS-1, SL-3: a rejected pod is Blocked in every report, emits one event, and needs no
// further calls.
func TestSync_BlockedPodWaits(t *testing.T) {
	testBlocked(t, func(t *testing.T, n *fakeNode, _ *licence, sync func(runtime.Pod) ([]string, runtime.SyncResult)) {
		steps, _ := sync(runtime.Pod{})
		require.Equal(t, []string{"status", "status"}, steps)
		require.Equal(t, "NoLicence: all are in use", n.reports[1].Blocked.Message)
		for range 3 {
			steps, out := sync(runtime.Pod{})
			require.Equal(t, []string{"status"}, steps)
			require.NotNil(t, n.reports[0].Blocked)
			require.Equal(t, time.Now().Add(10*time.Second), out.RequeueAt)
			require.True(t, out.Unchanged)
		}
		require.Len(t, n.events, 1)
	})
}

// PS-1: a pod that is rejected while it runs is stopped and its containers are removed.
// It starts from the beginning when it is admitted.
func TestSync_BlockedPodStartsFromTheBeginning(t *testing.T) {
	testBlocked(t, func(t *testing.T, n *fakeNode, l *licence, sync func(runtime.Pod) ([]string, runtime.SyncResult)) {
		steps, _ := sync(runningPod(2))
		require.Equal(t, []string{"status", "status", "kill"}, steps)
		steps, _ = sync(runtime.Pod{Sandboxes: runningPod(2).Sandboxes})
		require.Equal(t, []string{"status", "kill"}, steps, "the sandbox is stopped too")
		steps, _ = sync(exitedPod(2))
		require.Equal(t, []string{"status", "remove containers"}, steps)
		steps, _ = sync(runtime.Pod{})
		require.Equal(t, []string{"status"}, steps)

		l.free = true
		steps, _ = sync(runtime.Pod{})
		require.Contains(t, steps, "apply")
		require.NotNil(t, n.reports[0].Blocked)
		require.Nil(t, n.reports[1].Blocked, "reported before the images are pulled")
		start := n.plan[len(n.plan)-1]
		require.Equal(t, runtime.StartContainer, start.Type)
		require.EqualValues(t, 3, start.Attempt, "a previous attempt has used the number and its log")

		sync(runningPod(3))
		require.Len(t, n.reports, 1)
		require.Nil(t, n.reports[0].Blocked)
	})
}

// PS-1: a pod that is admitted before it was stopped continues to run. One that was
// stopped is removed first.
func TestSync_AdmittedWhileStopping(t *testing.T) {
	for name, observed := range map[string]runtime.Pod{"still running": runningPod(0), "stopped": exitedPod(0)} {
		t.Run(name, func(t *testing.T) {
			testBlocked(t, func(t *testing.T, n *fakeNode, l *licence, sync func(runtime.Pod) ([]string, runtime.SyncResult)) {
				sync(runningPod(0))
				l.free = true
				steps, out := sync(observed)
				if observed.CouldHaveRunningContainers() {
					require.NotContains(t, steps, "remove containers")
					require.Nil(t, n.reports[len(n.reports)-1].Blocked)
					return
				}
				require.Equal(t, []string{"status", "remove containers"}, steps)
				require.NotNil(t, n.reports[0].Blocked, "otherwise its results would count")
				require.False(t, out.RequeueAt.After(time.Now()))
				steps, _ = sync(runtime.Pod{})
				require.Contains(t, steps, "apply")
			})
		})
	}
}

// PS-1, AG-4: a pod that a previous process was stopping continues to wait.
func TestSync_BlockedByPreviousProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		saved  corev1.PodStatus
		waited bool
	}{
		"it waited":                    {corev1.PodStatus{Phase: corev1.PodPending, Reason: "Blocked", Message: "NoLicence: then"}, true},
		"it ran":                       {corev1.PodStatus{Phase: corev1.PodRunning}, false},
		"it waited for something else": {corev1.PodStatus{Phase: corev1.PodPending, Reason: "Other"}, false},
		"no status":                    {corev1.PodStatus{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			testBlocked(t, func(t *testing.T, n *fakeNode, l *licence, sync func(runtime.Pod) ([]string, runtime.SyncResult)) {
				n.saved, l.free = tc.saved, true
				steps, _ := sync(exitedPod(0))
				if !tc.waited {
					require.Nil(t, n.reports[0].Blocked)
					require.NotContains(t, steps, "remove containers")
					return
				}
				require.Equal(t, "NoLicence: then", n.reports[0].Blocked.Message)
				require.Contains(t, steps, "remove containers")
				require.NotContains(t, steps, "apply")
			})
		})
	}
}

// PW-5: a grace period of 0 in the spec is a second, and no kill by force, which runs no hook.
func TestSync_BlockedPodIsNotKilledByForce(t *testing.T) {
	for _, seconds := range []int64{0, 30} {
		n := &fakeNode{phase: corev1.PodPending}
		cfg := newConfig(t, n)
		cfg.SoftAdmitters = []podsync.SoftAdmitter{new(licence)}
		p := newTestPod()
		p.Spec.TerminationGracePeriodSeconds = &seconds
		_, err := newSyncer(t, cfg).Sync(t.Context(), p, runningPod(0))
		require.NoError(t, err)
		require.Equal(t, runtime.Termination{GracePeriod: time.Duration(max(seconds, 1)) * time.Second}, n.killed)
	}
}
