package podsync_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

var errBoom = errors.New("boom")

// PS-1: a step that cannot be taken is the error of the sync, an event and the failure
// in the status, in the same sync, and nothing is applied.
func TestSync_StepFails(t *testing.T) {
	asFile := func(t *testing.T, path string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	for name, tt := range map[string]struct {
		change func(t *testing.T, cfg *podsync.Config, p *corev1.Pod)
		reason string
		want   string
	}{
		"network": {func(_ *testing.T, cfg *podsync.Config, _ *corev1.Pod) {
			cfg.NetworkReady = func() error { return errBoom }
		}, "NetworkNotReady", "network is not ready: boom"},
		"resolver is missing": {func(t *testing.T, cfg *podsync.Config, p *corev1.Pod) {
			cfg.Node.ResolvConf = filepath.Join(t.TempDir(), "absent")
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSDefault, &corev1.PodDNSConfig{}
		}, "FailedCreatePodDirectory", "read resolver configuration of the node"},
		"resolver is a directory": {func(t *testing.T, cfg *podsync.Config, p *corev1.Pod) {
			cfg.Node.ResolvConf = t.TempDir()
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSDefault, &corev1.PodDNSConfig{}
		}, "FailedCreatePodDirectory", "read resolver configuration of the node"},
		"pod directory": {func(t *testing.T, cfg *podsync.Config, _ *corev1.Pod) { asFile(t, cfg.PodsDir) }, "FailedCreatePodDirectory", "create pod directory"},
		"log directory": {func(t *testing.T, cfg *podsync.Config, _ *corev1.Pod) { asFile(t, cfg.LogsDir) }, "FailedCreatePodDirectory", "create log directory"},
		"namespace":     {func(_ *testing.T, _ *podsync.Config, p *corev1.Pod) { p.Namespace = "a/b" }, "FailedCreatePodDirectory", "invalid path element"},
		"name":          {func(_ *testing.T, _ *podsync.Config, p *corev1.Pod) { p.Name = ".." }, "FailedCreatePodDirectory", "invalid path element"},
		"no volume manager": {func(_ *testing.T, cfg *podsync.Config, p *corev1.Pod) {
			cfg.Volumes, p.Spec.Volumes = nil, []corev1.Volume{{Name: "a"}, {Name: "b"}}
		}, "FailedMount", "pod has 2 volumes but no volume manager is configured"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodPending}
			cfg, p := newConfig(t, n), newTestPod()
			tt.change(t, &cfg, p)
			_, err := newSyncer(t, cfg).Sync(t.Context(), p, runtime.Pod{})
			require.ErrorContains(t, err, tt.want)
			require.Len(t, n.events, 1)
			assert.Equal(t, tt.reason, n.events[0].Reason)
			require.Len(t, n.reports, 2)
			assert.Equal(t, tt.reason, n.reports[1].Failures[""].Reason)
			assert.ErrorContains(t, n.reports[1].Failures[""].Err, tt.want)
			assert.NotContains(t, n.trace, "apply")
		})
	}
}

// PS-1: what depends on a part that is not configured is left out.
func TestSync_WithoutOptionalParts(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning, start: &metav1.Time{Time: time.Now().Add(-time.Hour)}}
	cfg, p, limit := newConfig(t, n), withUserNamespace(), int64(60)
	cfg.Volumes, cfg.Cgroups, cfg.Probes, cfg.PodKiller, cfg.UserNamespaces, cfg.Recorder = nil, nil, nil, nil, nil, nil
	cfg.Node = podsync.Node{Name: "n", IPs: func() []string { return []string{"192.0.2.1"} }, Allocatable: corev1.ResourceList{}}
	cfg.Objects = objects{}
	p.Spec.ActiveDeadlineSeconds = &limit
	out, err := newSyncer(t, cfg).Sync(t.Context(), p, runtime.Pod{})
	require.NoError(t, err)
	assert.Zero(t, out.RequeueAt, "a deadline that has passed is not a requeue time")
	assert.Equal(t, []string{"status", "apply"}, n.trace)
	assert.Equal(t, "n", n.opts.NodeName)
	assert.Equal(t, []string{"192.0.2.1"}, n.opts.HostIPs)
	assert.NotNil(t, n.opts.Allocatable)
	assert.NotNil(t, n.opts.Objects)

	p.Spec.ActiveDeadlineSeconds = nil
	_, err = newSyncer(t, cfg).Sync(t.Context(), p, runtime.Pod{})
	require.NoError(t, err, "a pod that has started and has no deadline")
	assert.NotEmpty(t, n.opts.Dir)
}

// PS-1: without Probes all probes count as successful, so that a sidecar with a startup probe
// does not keep the pod from starting.
func TestSync_WithoutProbes(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	cfg, p, always := newConfig(t, n), newTestPod(), corev1.ContainerRestartPolicyAlways
	cfg.Probes = nil
	p.Spec.InitContainers = []corev1.Container{{
		Name: "proxy", Image: "busybox:1", RestartPolicy: &always,
		StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ok"}}}},
	}}
	observed := runningPod(0)
	observed.Containers[0].ID, observed.Containers[0].Name, observed.Containers[0].Type = "c1", "proxy", runtime.Sidecar
	_, err := newSyncer(t, cfg).Sync(t.Context(), p, observed)
	require.NoError(t, err)
	require.Len(t, n.plan, 1)
	assert.Equal(t, "main", n.plan[0].Container)
	require.NotEmpty(t, n.reports)
	assert.Equal(t, runtime.ProbeSuccess, n.reports[0].Probes[observed.Containers[0].ID].Readiness)
}

// PS-1: the directories are options of each sync, also when they are not checked.
func TestSync_DirectoriesOfSecondSync(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning}
	cfg := newConfig(t, n)
	s, crashed := newSyncer(t, cfg), runningPod(0)
	crashed.Containers[0].Hash = runtime.HashContainer(&newTestPod().Spec.Containers[0])
	for range 2 {
		n.opts = runtime.RunOptions{}
		_, err := s.Sync(t.Context(), newTestPod(), crashed)
		require.NoError(t, err)
	}
	p := newTestPod()
	p.Spec.Containers[0].Image = "busybox:2"
	_, err := s.Sync(t.Context(), p, crashed)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(cfg.PodsDir, "uid-1"), n.opts.Dir)
	assert.Equal(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"), n.opts.LogDir)
}

// RT-13: a container was created if its status has any trace of it.
func TestSync_RestartCountsOfCreatedContainers(t *testing.T) {
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	for name, tt := range map[string]struct {
		status corev1.ContainerStatus
		want   uint32
	}{
		"id":                {corev1.ContainerStatus{ContainerID: "rt://1"}, 1},
		"termination state": {corev1.ContainerStatus{LastTerminationState: terminated}, 1},
		"restarts":          {corev1.ContainerStatus{RestartCount: 3}, 4},
		"negative restarts": {corev1.ContainerStatus{ContainerID: "rt://1", RestartCount: -1}, 1},
		"nothing":           {corev1.ContainerStatus{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tt.status.Name = "main"
			n := &fakeNode{phase: corev1.PodRunning, counts: []corev1.ContainerStatus{tt.status}}
			_, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), newTestPod(), runtime.Pod{})
			require.NoError(t, err)
			require.Len(t, n.plan, 2)
			assert.Equal(t, tt.want, n.plan[1].Attempt)
		})
	}
}

// PS-1: a failure is reported with its reason, and again when only the reason changes.
func TestSync_ReportsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{phase: corev1.PodPending}
		s := newSyncer(t, newConfig(t, n))
		for _, reason := range []string{"ErrImagePull", "ImagePullBackOff"} {
			n.applied = runtime.ApplyResult{Failures: map[string]runtime.Failure{"": {Reason: reason, Message: "not found", Err: errBoom}}}
			_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
			require.EqualError(t, err, reason+": boom")
			assert.Equal(t, reason, n.reports[len(n.reports)-1].Failures[""].Reason)
		}
		n.applied = runtime.ApplyResult{Failures: map[string]runtime.Failure{"main": {Reason: "ImagePullBackOff", Message: "not found"}}}
		_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
		assert.Contains(t, n.reports[len(n.reports)-1].Failures, "main", "another container")

		_, err = s.Sync(t.Context(), newTestPod(), withContainers(crashed("c", 1)))
		require.NoError(t, err)
		planned := n.reports[len(n.reports)-1].Failures["main"]
		assert.Equal(t, "CrashLoopBackOff", planned.Reason)
		assert.NotEmpty(t, planned.Message)
		assert.Equal(t, 10*time.Second, time.Until(planned.Until))
	})
}

// PS-2: a failed update of labels keeps the requeue time and the error of Apply.
func TestSync_UpdateFailsToo(t *testing.T) {
	until := time.Now().Add(time.Hour)
	n := &fakeNode{phase: corev1.PodRunning, fail: map[string]error{"update": errBoom}}
	rt := &labelRuntime{fakeNode: n}
	cfg := newConfig(t, n)
	cfg.Runtime = rt
	failed := errors.New("no such command")
	n.applied = runtime.ApplyResult{Failures: map[string]runtime.Failure{"main": {Reason: "RunContainerError", Err: failed, Until: until}}}
	s := newSyncer(t, cfg)
	out, err := s.Sync(t.Context(), newTestPod(), withContainers())
	require.ErrorIs(t, err, errBoom)
	require.ErrorIs(t, err, failed)
	assert.Equal(t, until, out.RequeueAt)
	n.fail = nil
	_, err = s.Sync(t.Context(), newTestPod(), withContainers())
	require.ErrorIs(t, err, failed)
}

// PS-1: an error of a SoftAdmitter blocks a pod that does not run, and no other.
func TestSync_SoftAdmitterFails(t *testing.T) {
	failing := admitter(func(context.Context) (podspec.AdmitResult, error) { return podspec.Admitted(), errBoom })
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	cfg.SoftAdmitters = []podsync.SoftAdmitter{failing}
	_, err := newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runtime.Pod{})
	require.NoError(t, err)
	assert.Equal(t, "admission check: boom", n.reports[1].Blocked.Message)
	_, err = newSyncer(t, cfg).Sync(t.Context(), newTestPod(), runningPod(0))
	require.NoError(t, err)
	assert.Contains(t, n.trace, "mount", "the sync of a running pod continues")
}

// SL-3: the deadline is one for all SoftAdmitters, and a call that has not returned is
// named as the reason.
func TestSync_SoftAdmittersShareDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, release := 0, make(chan struct{})
		n := &fakeNode{phase: corev1.PodPending}
		cfg := newConfig(t, n)
		cfg.SoftAdmitters = []podsync.SoftAdmitter{
			admitter(func(context.Context) (podspec.AdmitResult, error) { <-release; return podspec.Admitted(), nil }),
			admitter(func(context.Context) (podspec.AdmitResult, error) { calls++; return podspec.Admitted(), nil }),
		}
		s := newSyncer(t, cfg)
		_, err := s.Sync(t.Context(), newTestPod(), runningPod(0))
		require.NoError(t, err)
		assert.Zero(t, calls, "no call after the deadline")
		_, err = s.Sync(t.Context(), newTestPod(), runtime.Pod{})
		require.NoError(t, err)
		assert.Equal(t, "admission check: the previous call has not returned", n.reports[len(n.reports)-1].Blocked.Message)
		assert.Contains(t, n.events[0].Message, "the previous call has not returned")
		close(release)
	})
}

// PS-1: a changed message is reported, and errors while the pod is stopped are returned.
func TestSync_BlockedPodFails(t *testing.T) {
	reason := "NoLicence"
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	cfg.SoftAdmitters = []podsync.SoftAdmitter{admitter(func(context.Context) (podspec.AdmitResult, error) {
		if reason == "" {
			return podspec.Admitted(), nil
		}
		return podspec.Rejected(reason, "wait"), nil
	})}
	s := newSyncer(t, cfg)
	sync := func(observed runtime.Pod) (runtime.SyncResult, error) {
		n.reports = nil
		return s.Sync(t.Context(), newTestPod(), observed)
	}
	_, err := sync(runtime.Pod{})
	require.NoError(t, err)
	reason = "Other"
	_, err = sync(runtime.Pod{})
	require.NoError(t, err)
	require.Len(t, n.reports, 2)
	assert.Equal(t, "Other: wait", n.reports[1].Blocked.Message)

	n.fail = map[string]error{"kill": errBoom, "remove containers": errBoom}
	out, err := sync(runningPod(0))
	require.ErrorIs(t, err, errBoom)
	assert.NotZero(t, out.RequeueAt)
	out, err = sync(exitedPod(0))
	require.EqualError(t, err, "remove containers of blocked pod: boom")
	assert.NotZero(t, out.RequeueAt)
	reason = ""
	out, err = sync(exitedPod(0))
	require.ErrorIs(t, err, errBoom)
	assert.Zero(t, out.RequeueAt, "the back-off of a failed sync says when")
	assert.NotContains(t, n.trace, "apply")
}

// PW-8: failures of a termination are returned, emitted, and retried.
func TestTerminate_Fails(t *testing.T) {
	for step, want := range map[string]string{"kill": "kill pod: boom", "inspect": "inspect terminated pod: boom"} {
		n := &fakeNode{phase: corev1.PodRunning, fail: map[string]error{step: errBoom}}
		s := newSyncer(t, newConfig(t, n))
		require.EqualError(t, s.Terminate(t.Context(), newTestPod(), runtime.Pod{}, runtime.Termination{}), want)
		assert.NotContains(t, n.trace, "remove probes")
		if step == "kill" {
			require.Len(t, n.events, 1)
			assert.Equal(t, "FailedKillPod", n.events[0].Reason)
		}
	}
	n := &fakeNode{observed: runtime.Pod{Containers: []runtime.Container{{Name: "a", State: runtime.Unknown}, {Name: "b", State: runtime.Exited}, {Name: "c", State: runtime.Running}}}}
	err := newSyncer(t, newConfig(t, n)).Terminate(t.Context(), newTestPod(), runtime.Pod{}, runtime.Termination{})
	require.EqualError(t, err, "kill pod: containers are still running: a, c")
}

// PW-8: failures of the cleanup are returned and emitted, for orphans returned only.
func TestFinish_Fails(t *testing.T) {
	for step, want := range map[string]string{
		"inspect": "inspect terminated pod: boom", "remove containers": "remove containers: boom", "remove cgroup": "remove cgroup: boom", "unmount": "unmount volumes: boom",
	} {
		n := &fakeNode{fail: map[string]error{step: errBoom}}
		s := newSyncer(t, newConfig(t, n))
		require.EqualError(t, s.Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true}), want)
		assert.Empty(t, n.reports)
		if step != "inspect" {
			require.Len(t, n.events, 1)
			assert.Equal(t, "FailedCleanup", n.events[0].Reason)
			orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: "default", UID: "uid-9"}}
			require.EqualError(t, s.Terminate(t.Context(), orphan, runtime.Pod{}, runtime.Termination{}), want)
		}
	}
	n := &fakeNode{}
	p := newTestPod()
	p.Namespace = "a/b"
	require.ErrorIs(t, newSyncer(t, newConfig(t, n)).Finish(t.Context(), p, runtime.Termination{Deleted: true}), podsync.ErrUnsafeName)
	p.UID = ".."
	require.ErrorIs(t, newSyncer(t, newConfig(t, n)).Finish(t.Context(), p, runtime.Termination{}), podsync.ErrUnsafeName)
}

// PS-4: a log directory that cannot be checked or removed is an error.
func TestFinish_LogDirectoryFails(t *testing.T) {
	owned := func() string { return "one" }
	for name, tt := range map[string]struct {
		owner func() string
		path  func(cfg podsync.Config) string // of a file
		want  string
	}{
		"log directory is a file":                    {nil, func(cfg podsync.Config) string { return filepath.Join(cfg.LogsDir, "default_web_uid-1") }, "remove log directory"},
		"directory of all logs is a file":            {nil, func(cfg podsync.Config) string { return cfg.LogsDir }, "remove log directory"},
		"directory of all logs is a file, with mark": {owned, func(cfg podsync.Config) string { return cfg.LogsDir }, "remove log directory"},
		"no logs":            {nil, nil, ""},
		"no logs, with mark": {owned, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := &fakeNode{}
			cfg := newConfig(t, n)
			cfg.Owner = tt.owner
			if tt.path != nil {
				path := tt.path(cfg)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, nil, 0o600))
			}
			err := newSyncer(t, cfg).Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true})
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}

// PS-4: the directories on disk show which pods a previous process has left.
func TestListPodsFromDisk(t *testing.T) {
	cfg := newConfig(t, &fakeNode{})
	s := newSyncer(t, cfg)
	uids, err := s.ListPodsFromDisk()
	require.NoError(t, err)
	assert.Empty(t, uids, "no directory yet")
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.PodsDir, "uid-1"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(cfg.PodsDir, "file"), nil, 0o600))
	uids, err = s.ListPodsFromDisk()
	require.NoError(t, err)
	assert.Equal(t, []types.UID{"uid-1"}, uids)

	require.NoError(t, os.RemoveAll(cfg.PodsDir))
	require.NoError(t, os.WriteFile(cfg.PodsDir, nil, 0o600))
	_, err = s.ListPodsFromDisk()
	require.ErrorContains(t, err, "list pod directories")
}

// PS-4: an orphan that cannot be cleaned up keeps its directory.
func TestCleanupOrphan_Fails(t *testing.T) {
	n := &fakeNode{fail: map[string]error{"remove cgroup": errBoom}}
	cfg := newConfig(t, n)
	s, dir := newSyncer(t, cfg), filepath.Join(cfg.PodsDir, "uid-7")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.EqualError(t, s.CleanupOrphan(t.Context(), "uid-7"), "remove cgroup: boom")
	assert.DirExists(t, dir)
	n.fail = nil
	require.NoError(t, os.RemoveAll(cfg.PodsDir))
	require.NoError(t, os.WriteFile(cfg.PodsDir, nil, 0o600))
	require.ErrorContains(t, s.CleanupOrphan(t.Context(), "uid-7"), "remove pod directory")
}

// An API server forgets an event after an hour. The reason why a pod does not start stays visible while it lasts.
func TestSync_RepeatsLastingError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{phase: corev1.PodPending, fail: map[string]error{"mount": errBoom}}
		s := newSyncer(t, newConfig(t, n))
		for range 2*60 + 1 {
			_, err := s.Sync(t.Context(), newTestPod(), runtime.Pod{})
			require.ErrorIs(t, err, errBoom)
			time.Sleep(30 * time.Second)
		}
		require.Len(t, n.events, 7, "one in ten minutes")
		assert.Equal(t, n.events[0].Message, n.events[6].Message)
	})
}

// Of several errors with one reason each is emitted once.
func TestSync_ErrorsOfOneReason(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg, p := newConfig(t, n), newTestPod()
	cfg.Objects = objects{}
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}
	s := newSyncer(t, cfg)
	for range 3 {
		_, err := s.Sync(t.Context(), p, runtime.Pod{})
		require.NoError(t, err)
	}
	assert.Equal(t, []string{"FailedToRetrieveImagePullSecret", "FailedToRetrieveImagePullSecret"}, reasons(n.events))
}
