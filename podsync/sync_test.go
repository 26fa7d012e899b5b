package podsync_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// PW-14: a sync that changed the runtime is followed by an inspection.
func TestSync_ReportsChangeOfRuntime(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending, applied: runtime.ApplyResult{Changed: true}}
	out, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	require.False(t, out.Unchanged)
}

// PS-1
func TestSync_StepsInOrder(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	out, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	require.Equal(t, runtime.SyncResult{Unchanged: true}, out, "the runtime reports that nothing was changed")
	require.Equal(t, []string{"status", "cgroup", "mount", "probes", "apply"}, n.trace)
	require.Equal(t, "/kubepods/podx", n.opts.CgroupParent)
	require.Equal(t, "web", n.opts.Hostname)
	require.Equal(t, "/somewhere", n.opts.Volumes["data"].HostPath)
	sub, err := n.opts.SubPath(t.Context(), "main", 0, corev1.VolumeMount{Name: "data", SubPath: "a"})
	require.NoError(t, err)
	require.Equal(t, "/somewhere/uid-1/main/a", sub)
	info, err := os.Stat(n.opts.Dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.Equal(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"), n.opts.LogDir)
}

// RT-13: the runtime has lost the pod, its status has the restart counts.
func TestSync_RestartCountsSurviveLossOfRuntimeState(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning, counts: []corev1.ContainerStatus{{Name: "main", ContainerID: "rt://1", RestartCount: 4}}}
	_, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	require.Len(t, n.plan, 2, "a sandbox and the container")
	require.EqualValues(t, 5, n.plan[1].Attempt)
	n.counts = []corev1.ContainerStatus{{Name: "main"}}
	_, err = newSyncer(t, newConfig(t, n)).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	require.Zero(t, n.plan[1].Attempt, "a container that was never created starts at zero")
}

// PS-1
func TestSync_FailureAbortsAndIsEmittedOnce(t *testing.T) {
	for _, tt := range []struct{ step, reason string }{
		{"cgroup", "FailedCreatePodContainer"},
		{"mount", "FailedMount"},
	} {
		t.Run(tt.step, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodPending, fail: map[string]error{tt.step: errors.New("boom")}}
			s := newSyncer(t, newConfig(t, n))
			for range 3 {
				_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
				require.ErrorContains(t, err, "boom")
			}
			require.NotContains(t, n.trace, "apply")
			require.Len(t, n.events, 1)
			require.Equal(t, tt.reason, n.events[0].Reason)
			require.Equal(t, tt.reason, n.reports[len(n.reports)-1].Failures[""].Reason)

			n.fail = nil
			_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
			require.NoError(t, err)
			require.Contains(t, n.trace, "apply", "the next sync continues")
			require.Empty(t, n.reports[len(n.reports)-1].Failures, "and reports that the failure is resolved")

			n.fail = map[string]error{tt.step: errors.New("boom")}
			_, err = s.Sync(t.Context(), newTestPod(), runtime.Pod{})
			require.Error(t, err)
			require.Len(t, n.events, 2, "a failure that returns is emitted again")
		})
	}
}

// PS-1
func TestSync_WaitsForNetworkUnlessHostNetwork(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	cfg.NetworkReady = func() error { return errors.New("no CNI config") }
	s := newSyncer(t, cfg)
	_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.ErrorIs(t, err, podsync.ErrNetworkNotReady)
	require.NotContains(t, n.trace, "apply")
	require.NotContains(t, n.trace, "cgroup")
	_, err = s.Sync(t.Context(), newTestPod(), runningPod(0))
	require.ErrorIs(t, err, podsync.ErrNetworkNotReady)
	require.NotContains(t, n.trace, "apply")
	require.Contains(t, n.trace, "cgroup", "one that runs already has its part of what all pods have")
	n.fail = map[string]error{"cgroup": errors.New("read-only")}
	_, err = s.Sync(t.Context(), newTestPod(), runningPod(0))
	require.EqualError(t, err, "create cgroup: read-only")
	n.fail = nil
	p := newTestPod()
	p.Spec.HostNetwork = true
	_, err = s.Sync(t.Context(), p, runtime.Pod{})
	require.NoError(t, err)
	require.Empty(t, n.opts.Hostname, "runc rejects a host name in the UTS namespace of the node")
}

// PS-2
func TestSync_BackOffSetsRequeueAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soon, later := time.Now().Add(10*time.Second), time.Now().Add(20*time.Second)
		n := &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{
			"a": {Reason: "ImagePullBackOff", Until: later},
			"b": {Reason: "CrashLoopBackOff", Until: soon},
		}}}
		out, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
		require.Equal(t, soon, out.RequeueAt)
		require.Equal(t, "CrashLoopBackOff", n.reports[len(n.reports)-1].Failures["b"].Reason, "the status reports it in the same sync")
	})
}

func TestSync_ReturnsContainerFailure(t *testing.T) {
	boom := errors.New("no such command")
	n := &fakeNode{phase: corev1.PodPending, applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{
		"main": {Reason: "RunContainerError", Message: "no such command", Err: boom},
	}}}
	_, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "container main: RunContainerError")
}

// PW-4: in a terminal phase nothing is changed.
func TestSync_TerminalPhase(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		n := &fakeNode{phase: phase}
		out, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
		require.True(t, out.Terminal)
		require.True(t, out.Unchanged, "the state that was observed is still valid")
		require.Equal(t, []string{"status"}, n.trace)
	}
}

// PS-5
func TestSync_ActiveDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := metav1.Now()
		n := &fakeNode{phase: corev1.PodRunning, start: &start}
		s := newSyncer(t, newConfig(t, n))
		p := newTestPod()
		limit := int64(60)
		p.Spec.ActiveDeadlineSeconds = &limit
		out, err := s.Sync(t.Context(), p, runtime.Pod{})
		require.NoError(t, err)
		require.Equal(t, start.Add(time.Minute), out.RequeueAt, "the pod is requeued at the deadline")
		require.Empty(t, n.kills)
		time.Sleep(time.Minute)
		out, err = s.Sync(t.Context(), p, runtime.Pod{})
		require.NoError(t, err)
		require.True(t, out.Unchanged)
		require.Len(t, n.kills, 1)
		require.Equal(t, "DeadlineExceeded", n.kills[0].Reason)
		require.Equal(t, 30*time.Second, n.kills[0].GracePeriod)
		require.Equal(t, "DeadlineExceeded", n.events[len(n.events)-1].Reason)
		require.Equal(t, corev1.EventTypeNormal, n.events[len(n.events)-1].Type)
	})
}

// PS-5: a pod whose containers ended after its deadline has failed, also if the process that
// terminated it for that could not report it.
func TestSync_EndedAfterActiveDeadline(t *testing.T) {
	start := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	for name, tt := range map[string]struct {
		ranFor time.Duration
		saved  corev1.PodPhase
		late   bool
	}{
		"after it":            {65 * time.Second, corev1.PodRunning, true},
		"before it":           {59 * time.Second, corev1.PodRunning, false},
		"reported already":    {65 * time.Second, corev1.PodSucceeded, false},
		"nothing is reported": {65 * time.Second, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodSucceeded, saved: corev1.PodStatus{Phase: tt.saved, StartTime: &start}}
			p := newTestPod()
			p.Spec.ActiveDeadlineSeconds, p.Spec.RestartPolicy = new(int64(60)), corev1.RestartPolicyNever
			ended := exitedPod(0)
			ended.Containers[0].ExitCode, ended.Containers[0].Finished = 0, start.Add(tt.ranFor)
			result, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), p, ended)
			require.NoError(t, err)
			if !tt.late {
				require.True(t, result.Terminal)
				require.Empty(t, n.kills)
				return
			}
			require.True(t, result.Unchanged)
			require.Len(t, n.kills, 1)
			require.Equal(t, "DeadlineExceeded", n.kills[0].Reason)
			require.Empty(t, n.reports, "a success that was reported would be final")
		})
	}
}

// PS-1, SL-3
func TestSync_SoftAdmission(t *testing.T) {
	running := runtime.Pod{Containers: []runtime.Container{{Name: "main", State: runtime.Running}}}
	reject := admitter(func(context.Context) (podspec.AdmitResult, error) { return podspec.Rejected("Quota", "used up"), nil })
	hang := admitter(func(ctx context.Context) (podspec.AdmitResult, error) {
		<-ctx.Done()
		return podspec.AdmitResult{}, ctx.Err()
	})
	for _, tt := range []struct {
		name     string
		admit    admitter
		observed runtime.Pod
		blocked  bool
		killed   bool
	}{
		{"rejected before it runs", reject, runtime.Pod{}, true, false},
		{"rejected while it runs", reject, running, true, true},
		{"no answer before it runs", hang, runtime.Pod{}, true, false},
		{"no answer while it runs", hang, running, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &fakeNode{phase: corev1.PodPending}
				cfg := newConfig(t, n)
				cfg.SoftAdmitters = []podsync.SoftAdmitter{tt.admit}
				began := time.Now()
				out, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), tt.observed)
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(began), 10*time.Second)
				require.Equal(t, tt.blocked, !slices.Contains(n.trace, "apply"))
				require.Equal(t, tt.killed, slices.Contains(n.trace, "kill"))
				if tt.blocked {
					require.Equal(t, "Blocked", n.reports[len(n.reports)-1].Blocked.Reason)
					require.False(t, out.RequeueAt.IsZero(), "the check is repeated")
				}
			})
		})
	}
}

// PS-3
func TestTerminate_RecordsResults(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning, observed: runtime.Pod{Containers: []runtime.Container{{Name: "main", State: runtime.Exited, ExitCode: 143}}}}
	s := newSyncer(t, newConfig(t, n))
	require.NoError(t, s.Terminate(t.Context(), newTestPod(), runtime.Pod{}, runtime.Termination{GracePeriod: time.Second, Deleted: true}))
	require.Equal(t, []string{"status", "stop probes", "kill", "request inspection", "inspect", "status", "remove probes"}, n.trace,
		"an inspection that began at the time of the kill may have missed it, and is not enough")
	require.False(t, n.newer.After(n.askedAt), "the inspection that was requested is new enough")
	require.EqualValues(t, 143, n.reports[1].Observed.Containers[0].ExitCode)
	require.NotNil(t, n.reports[0].Termination)
}

// PW-8: the runtime reports that the pod was stopped, but it still runs.
func TestTerminate_InspectsAfterKill(t *testing.T) {
	n := &fakeNode{observed: runtime.Pod{Containers: []runtime.Container{{Name: "main", State: runtime.Running}}}}
	err := newSyncer(t, newConfig(t, n)).Terminate(t.Context(), newTestPod(), runtime.Pod{}, runtime.Termination{GracePeriod: time.Second})
	require.ErrorIs(t, err, podsync.ErrStillRunning)
	require.ErrorContains(t, err, "main")
	require.NotContains(t, n.trace, "remove probes")
}

// PS-4
func TestFinish_ReleasesEverything(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	s := newSyncer(t, cfg)
	_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	require.NoError(t, s.Terminate(t.Context(), newTestPod(), runtime.Pod{}, runtime.Termination{Deleted: true}))
	n.trace = nil
	require.NoError(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true}))
	require.Equal(t, []string{"remove containers", "unmount", "remove cgroup", "status"}, n.trace)
	require.True(t, n.reports[len(n.reports)-1].Finished)
	require.NoDirExists(t, filepath.Join(cfg.PodsDir, "uid-1"))
	require.NoDirExists(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"))
}

func TestFinish_KeepsContainersOfCompletedPod(t *testing.T) {
	n := &fakeNode{phase: corev1.PodSucceeded}
	cfg := newConfig(t, n)
	s := newSyncer(t, cfg)
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.LogsDir, "default_web_uid-1"), 0o755))
	require.NoError(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{}))
	require.NotContains(t, n.trace, "remove containers", "exited containers are kept for their logs")
	require.DirExists(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"))
}

// PW-8
func TestFinish_ContinuesAfterFailure(t *testing.T) {
	n := &fakeNode{fail: map[string]error{"unmount": errors.New("busy")}}
	cfg := newConfig(t, n)
	s := newSyncer(t, cfg)
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.PodsDir, "uid-1", "volumes"), 0o700))
	require.ErrorContains(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true}), "busy")
	require.Contains(t, n.trace, "remove cgroup", "a failing step does not stop the others")
	require.NotContains(t, n.trace, "status")
	require.DirExists(t, filepath.Join(cfg.PodsDir, "uid-1"), "files below a mount are not deleted")
	n.fail = nil
	require.NoError(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true}))
	require.NoDirExists(t, filepath.Join(cfg.PodsDir, "uid-1"))
}

// PW-11
func TestTerminate_RemovesOrphan(t *testing.T) {
	n := &fakeNode{}
	cfg := newConfig(t, n)
	s := newSyncer(t, cfg)
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: "default", UID: "uid-9"}}
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.LogsDir, "default_old_uid-9", "main"), 0o755))
	require.NoError(t, s.Terminate(t.Context(), orphan, runtime.Pod{UID: "uid-9"}, runtime.Termination{GracePeriod: time.Second}))
	require.Equal(t, []string{"stop probes", "kill", "request inspection", "inspect", "remove probes", "remove containers", "unmount", "remove cgroup"}, n.trace)
	require.NoDirExists(t, filepath.Join(cfg.LogsDir, "default_old_uid-9"))
}

func TestSync_RejectsUnsafeNames(t *testing.T) {
	for _, bad := range []string{"..", ".", "", "a/b", "../../etc", strings.Repeat("x", 254)} {
		n := &fakeNode{phase: corev1.PodPending}
		p := newTestPod()
		p.UID = types.UID(bad)
		_, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), p, runtime.Pod{})
		require.ErrorIs(t, err, podsync.ErrUnsafeName, bad)
		require.NotContains(t, n.trace, "apply")
	}
}

// IM-5: a missing pull secret is emitted as an event and left out.
func TestSync_PullSecrets(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	have := podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: "registry"}
	cfg.Objects = objects{have: {Ref: have, Data: map[string][]byte{".dockerconfigjson": []byte("hunter2")}}}
	p := newTestPod()
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}, {Name: "absent"}}
	s := newSyncer(t, cfg)
	for range 2 {
		_, err := s.Sync(t.Context(), p, runtime.Pod{})
		require.NoError(t, err)
	}
	require.Len(t, n.opts.PullSecrets, 1)
	require.Len(t, n.events, 1)
	require.Contains(t, n.events[0].Message, "absent")
	require.NotContains(t, n.events[0].Message, "hunter2")
}

// AG-1
func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := podsync.New(podsync.Config{PodsDir: "relative", AdmitTimeout: -1})
	for _, want := range []string{"Config.Runtime", "Config.PodCache", "Config.Statuses", "Config.PodsDir", "Config.LogsDir", "Config.AdmitTimeout"} {
		require.ErrorContains(t, err, want)
	}
}
