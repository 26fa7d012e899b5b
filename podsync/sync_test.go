package podsync_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// fakeNode stands in for everything a Syncer uses, and writes down the order in
// which it was used.
type fakeNode struct {
	mu       sync.Mutex
	trace    []string
	seen     runtime.Pod
	applied  runtime.ApplyResult
	fail     map[string]error // by step
	enter    func(string)     // called at each step; may be nil
	told     []runtime.Report
	phase    corev1.PodPhase
	before   corev1.PodStatus // as a former process told it
	start    *metav1.Time
	counts   []corev1.ContainerStatus
	plan     []runtime.Action
	events   []*corev1.Event
	ended    []runtime.Termination
	material runtime.RunOptions
}

func (n *fakeNode) step(s string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.trace = append(n.trace, s)
	if n.enter != nil {
		n.enter(s)
	}
	return n.fail[s]
}

func (n *fakeNode) Apply(_ context.Context, _ *corev1.Pod, plan []runtime.Action, m runtime.RunOptions) runtime.ApplyResult {
	_ = n.step("apply")
	n.plan = plan
	n.material = m
	return n.applied
}

func (n *fakeNode) Kill(context.Context, *corev1.Pod, runtime.Pod, runtime.Termination) error {
	return n.step("kill")
}
func (n *fakeNode) Remove(context.Context, runtime.Pod) error { return n.step("remove containers") }
func (n *fakeNode) GetNewerThan(context.Context, types.UID, time.Time) (runtime.Pod, error) {
	return n.seen, n.step("inspect")
}
func (n *fakeNode) RequestInspection(types.UID) { _ = n.step("request inspection") }

func (n *fakeNode) Observe(_ *corev1.Pod, r runtime.Report) corev1.PodStatus {
	_ = n.step("status")
	n.told = append(n.told, r)
	return corev1.PodStatus{Phase: n.phase, StartTime: n.start, ContainerStatuses: n.counts}
}

func (n *fakeNode) Get(types.UID) (corev1.PodStatus, bool) { return n.before, n.before.Phase != "" }

func (n *fakeNode) Mount(context.Context, *corev1.Pod, podspec.Objects) (map[string]runtime.Volume, error) {
	return map[string]runtime.Volume{"data": {HostPath: "/somewhere"}}, n.step("mount")
}
func (n *fakeNode) Unmount(context.Context, types.UID) error { return n.step("unmount") }
func (n *fakeNode) SubPath(_ context.Context, uid types.UID, container string, v runtime.Volume, subPath string) (string, error) {
	return filepath.Join(v.HostPath, string(uid), container, subPath), nil
}
func (n *fakeNode) AddPod(*corev1.Pod)                             { _ = n.step("probes") }
func (n *fakeNode) StopLivenessAndStartup(types.UID)               { _ = n.step("stop probes") }
func (n *fakeNode) Results(types.UID) runtime.PodProbeResults      { return nil }
func (n *fakeNode) Record(e *corev1.Event)                         { n.events = append(n.events, e) }
func (n *fakeNode) RequestKill(_ types.UID, e runtime.Termination) { n.ended = append(n.ended, e) }

type probes struct{ *fakeNode }

func (p probes) RemovePod(types.UID) { _ = p.step("remove probes") }

type cgroups struct{ *fakeNode }

func (c cgroups) Ensure(context.Context, *corev1.Pod) (string, error) {
	return "/kubepods/podx", c.step("cgroup")
}
func (c cgroups) Remove(context.Context, types.UID) error { return c.step("remove cgroup") }

type userIDs struct{ *fakeNode }

func (u userIDs) Ensure(uid types.UID) (users, groups []runtime.IDMapping, err error) {
	return []runtime.IDMapping{{Host: 65536, Length: 1000}}, []runtime.IDMapping{{Host: 131072, Length: 1000}}, u.step("ids of " + string(uid))
}
func (u userIDs) Release(uid types.UID) { _ = u.step("release ids of " + string(uid)) }

type objects map[podspec.Ref]podspec.Object

func (o objects) Object(_ context.Context, r podspec.Ref) (podspec.Object, error) {
	if found, ok := o[r]; ok {
		return found, nil
	}
	return podspec.Object{}, podspec.ErrObjectNotFound
}

func pod() *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox:1"}}},
	}
	podspec.Default(p)
	return p
}

func config(t *testing.T, n *fakeNode) podsync.Config {
	dir := t.TempDir()
	return podsync.Config{
		Runtime: n, PodCache: n, Statuses: n, Volumes: n, Cgroups: cgroups{n}, Probes: probes{n}, Recorder: n, PodKiller: n,
		PodsDir: filepath.Join(dir, "pods"), LogsDir: filepath.Join(dir, "logs"),
	}
}

func newSyncer(t *testing.T, cfg podsync.Config) *podsync.Syncer {
	s, err := podsync.New(cfg)
	require.NoError(t, err)
	return s
}

// PW-14: a turn that changed something in the runtime is followed by a look.
func TestSyncThatChangedTheRuntimeIsNotQuiet(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending, applied: runtime.ApplyResult{Changed: true}}
	out, err := newSyncer(t, config(t, n)).Sync(t.Context(), pod(), runtime.Pod{})
	require.NoError(t, err)
	require.False(t, out.Unchanged)
}

// PS-1
func TestSyncTakesItsStepsInOrder(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := config(t, n)
	out, err := newSyncer(t, cfg).Sync(t.Context(), pod(), runtime.Pod{})
	require.NoError(t, err)
	require.Equal(t, runtime.SyncResult{Unchanged: true}, out, "the runtime says that nothing was changed")
	require.Equal(t, []string{"status", "cgroup", "mount", "probes", "apply"}, n.trace)
	require.Equal(t, "/kubepods/podx", n.material.CgroupParent)
	require.Equal(t, "web", n.material.Hostname)
	require.Equal(t, "/somewhere", n.material.Volumes["data"].HostPath)
	sub, err := n.material.SubPath(t.Context(), "main", 0, corev1.VolumeMount{Name: "data", SubPath: "a"})
	require.NoError(t, err)
	require.Equal(t, "/somewhere/uid-1/main/a", sub)
	info, err := os.Stat(n.material.Dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.Equal(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"), n.material.LogDir)
}

// RT-13: the runtime knows nothing of the pod any more, its status does.
func TestRestartCountsGoOnWhereTheRuntimeLostItsState(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning, counts: []corev1.ContainerStatus{{Name: "main", ContainerID: "rt://1", RestartCount: 4}}}
	_, err := newSyncer(t, config(t, n)).Sync(t.Context(), pod(), runtime.Pod{})
	require.NoError(t, err)
	require.Len(t, n.plan, 2, "a sandbox and the container")
	require.EqualValues(t, 5, n.plan[1].Attempt)
	n.counts = []corev1.ContainerStatus{{Name: "main"}}
	_, err = newSyncer(t, config(t, n)).Sync(t.Context(), pod(), runtime.Pod{})
	require.NoError(t, err)
	require.Zero(t, n.plan[1].Attempt, "one that was never made is new")
}

// PS-1
func TestAFaultBreaksTheTurnAndIsToldOnce(t *testing.T) {
	for _, tt := range []struct{ step, reason string }{
		{"cgroup", "FailedCreatePodContainer"},
		{"mount", "FailedMount"},
	} {
		t.Run(tt.step, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodPending, fail: map[string]error{tt.step: errors.New("boom")}}
			s := newSyncer(t, config(t, n))
			for range 3 {
				_, err := s.Sync(t.Context(), pod(), runtime.Pod{})
				require.ErrorContains(t, err, "boom")
			}
			require.NotContains(t, n.trace, "apply")
			require.Len(t, n.events, 1)
			require.Equal(t, tt.reason, n.events[0].Reason)
			require.Equal(t, tt.reason, n.told[len(n.told)-1].Failures[""].Reason)

			n.fail = nil
			_, err := s.Sync(t.Context(), pod(), runtime.Pod{})
			require.NoError(t, err)
			require.Contains(t, n.trace, "apply", "the next turn goes on")
			require.Empty(t, n.told[len(n.told)-1].Failures, "and takes the reason back")

			n.fail = map[string]error{tt.step: errors.New("boom")}
			_, err = s.Sync(t.Context(), pod(), runtime.Pod{})
			require.Error(t, err)
			require.Len(t, n.events, 2, "a fault that comes back is news")
		})
	}
}

// PS-1
func TestNetworkIsWaitedForUnlessTheHosts(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := config(t, n)
	cfg.NetworkReady = func() error { return errors.New("no CNI config") }
	s := newSyncer(t, cfg)
	_, err := s.Sync(t.Context(), pod(), runtime.Pod{})
	require.ErrorIs(t, err, podsync.ErrNetworkNotReady)
	require.NotContains(t, n.trace, "apply")
	p := pod()
	p.Spec.HostNetwork = true
	_, err = s.Sync(t.Context(), p, runtime.Pod{})
	require.NoError(t, err)
	require.Empty(t, n.material.Hostname, "runc refuses a hostname in the node's UTS namespace")
}

// PS-2
func TestOnlyBackOffsLeftIsASuccessThatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soon, later := time.Now().Add(10*time.Second), time.Now().Add(20*time.Second)
		n := &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{
			"a": {Reason: "ImagePullBackOff", Until: later},
			"b": {Reason: "CrashLoopBackOff", Until: soon},
		}}}
		out, err := newSyncer(t, config(t, n)).Sync(t.Context(), pod(), runtime.Pod{})
		require.NoError(t, err)
		require.Equal(t, soon, out.RequeueAt)
		require.Equal(t, "CrashLoopBackOff", n.told[len(n.told)-1].Failures["b"].Reason, "the status says so at once")
	})
}

func TestAFailedContainerIsAnErrorOfTheTurn(t *testing.T) {
	boom := errors.New("no such command")
	n := &fakeNode{phase: corev1.PodPending, applied: runtime.ApplyResult{Failures: map[string]runtime.Failure{
		"main": {Reason: "RunContainerError", Message: "no such command", Err: boom},
	}}}
	_, err := newSyncer(t, config(t, n)).Sync(t.Context(), pod(), runtime.Pod{})
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "container main: RunContainerError")
}

// PW-4: a terminal phase is the outcome, and nothing is touched.
func TestATerminalPhaseEndsTheSync(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		n := &fakeNode{phase: phase}
		out, err := newSyncer(t, config(t, n)).Sync(t.Context(), pod(), runtime.Pod{})
		require.NoError(t, err)
		require.True(t, out.Terminal)
		require.Equal(t, []string{"status"}, n.trace)
	}
}

// PS-5
func TestActiveDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := metav1.Now()
		n := &fakeNode{phase: corev1.PodRunning, start: &start}
		s := newSyncer(t, config(t, n))
		p := pod()
		limit := int64(60)
		p.Spec.ActiveDeadlineSeconds = &limit
		out, err := s.Sync(t.Context(), p, runtime.Pod{})
		require.NoError(t, err)
		require.Equal(t, start.Add(time.Minute), out.RequeueAt, "the deadline wakes the pod")
		require.Empty(t, n.ended)
		time.Sleep(time.Minute)
		_, err = s.Sync(t.Context(), p, runtime.Pod{})
		require.NoError(t, err)
		require.Len(t, n.ended, 1)
		require.Equal(t, "DeadlineExceeded", n.ended[0].Reason)
		require.Equal(t, 30*time.Second, n.ended[0].GracePeriod)
	})
}

type admitter func(context.Context) (podspec.AdmitResult, error)

func (a admitter) Admit(ctx context.Context, _ *corev1.Pod) (podspec.AdmitResult, error) {
	return a(ctx)
}

// PS-1, SL-3
func TestSlowAdmission(t *testing.T) {
	running := runtime.Pod{Containers: []runtime.Container{{Name: "main", State: runtime.Running}}}
	refuse := admitter(func(context.Context) (podspec.AdmitResult, error) { return podspec.Rejected("Quota", "used up"), nil })
	hang := admitter(func(ctx context.Context) (podspec.AdmitResult, error) {
		<-ctx.Done()
		return podspec.AdmitResult{}, ctx.Err()
	})
	for _, tt := range []struct {
		name    string
		admit   admitter
		seen    runtime.Pod
		blocked bool
		killed  bool
	}{
		{"refused before it runs", refuse, runtime.Pod{}, true, false},
		{"refused while it runs", refuse, running, true, true},
		{"silent before it runs", hang, runtime.Pod{}, true, false},
		{"silent while it runs", hang, running, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &fakeNode{phase: corev1.PodPending}
				cfg := config(t, n)
				cfg.SoftAdmitters = []podsync.SoftAdmitter{tt.admit}
				began := time.Now()
				out, err := newSyncer(t, cfg).Sync(t.Context(), pod(), tt.seen)
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(began), 10*time.Second)
				require.Equal(t, tt.blocked, !slices.Contains(n.trace, "apply"))
				require.Equal(t, tt.killed, slices.Contains(n.trace, "kill"))
				if tt.blocked {
					require.Equal(t, "Blocked", n.told[len(n.told)-1].Blocked.Reason)
					require.False(t, out.RequeueAt.IsZero(), "it is asked about again")
				}
			})
		})
	}
}

// PS-3
func TestTerminateRecordsTheEndBeforeAnythingGoes(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning, seen: runtime.Pod{Containers: []runtime.Container{{Name: "main", State: runtime.Exited, ExitCode: 143}}}}
	s := newSyncer(t, config(t, n))
	require.NoError(t, s.Terminate(t.Context(), pod(), runtime.Pod{}, runtime.Termination{GracePeriod: time.Second, Deleted: true}))
	require.Equal(t, []string{"status", "stop probes", "kill", "request inspection", "inspect", "status", "remove probes"}, n.trace,
		"an inspection that began at the time of the kill may have missed it, and is not enough")
	require.EqualValues(t, 143, n.told[1].Observed.Containers[0].ExitCode)
	require.NotNil(t, n.told[0].Termination)
}

// PW-8: the runtime said that it stopped, and it did not.
func TestTerminateDoesNotBelieveTheRuntime(t *testing.T) {
	n := &fakeNode{seen: runtime.Pod{Containers: []runtime.Container{{Name: "main", State: runtime.Running}}}}
	err := newSyncer(t, config(t, n)).Terminate(t.Context(), pod(), runtime.Pod{}, runtime.Termination{GracePeriod: time.Second})
	require.ErrorIs(t, err, podsync.ErrStillRunning)
	require.ErrorContains(t, err, "main")
	require.NotContains(t, n.trace, "remove probes")
}

// PS-4
func TestFinishGivesEverythingBack(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := config(t, n)
	s := newSyncer(t, cfg)
	_, err := s.Sync(t.Context(), pod(), runtime.Pod{})
	require.NoError(t, err)
	require.NoError(t, s.Terminate(t.Context(), pod(), runtime.Pod{}, runtime.Termination{Deleted: true}))
	n.trace = nil
	require.NoError(t, s.Finish(t.Context(), pod(), runtime.Termination{Deleted: true}))
	require.Equal(t, []string{"remove containers", "unmount", "remove cgroup", "status"}, n.trace)
	require.True(t, n.told[len(n.told)-1].Finished)
	require.NoDirExists(t, filepath.Join(cfg.PodsDir, "uid-1"))
	require.NoDirExists(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"))
}

func TestFinishKeepsWhatAFinishedJobLeft(t *testing.T) {
	n := &fakeNode{phase: corev1.PodSucceeded}
	cfg := config(t, n)
	s := newSyncer(t, cfg)
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.LogsDir, "default_web_uid-1"), 0o755))
	require.NoError(t, s.Finish(t.Context(), pod(), runtime.Termination{}))
	require.NotContains(t, n.trace, "remove containers", "its containers are there to look at")
	require.DirExists(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"))
}

// PW-8
func TestFinishGoesOnAndIsCalledAgain(t *testing.T) {
	n := &fakeNode{fail: map[string]error{"unmount": errors.New("busy")}}
	cfg := config(t, n)
	s := newSyncer(t, cfg)
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.PodsDir, "uid-1", "volumes"), 0o700))
	require.ErrorContains(t, s.Finish(t.Context(), pod(), runtime.Termination{Deleted: true}), "busy")
	require.Contains(t, n.trace, "remove cgroup", "one stuck step keeps no other")
	require.NotContains(t, n.trace, "status")
	require.DirExists(t, filepath.Join(cfg.PodsDir, "uid-1"), "nothing is deleted under a mount")
	n.fail = nil
	require.NoError(t, s.Finish(t.Context(), pod(), runtime.Termination{Deleted: true}))
	require.NoDirExists(t, filepath.Join(cfg.PodsDir, "uid-1"))
}

// PW-11
func TestAnOrphanLeavesNothing(t *testing.T) {
	n := &fakeNode{}
	cfg := config(t, n)
	s := newSyncer(t, cfg)
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: "default", UID: "uid-9"}}
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.LogsDir, "default_old_uid-9", "main"), 0o755))
	require.NoError(t, s.Terminate(t.Context(), orphan, runtime.Pod{UID: "uid-9"}, runtime.Termination{GracePeriod: time.Second}))
	require.Equal(t, []string{"stop probes", "kill", "request inspection", "inspect", "remove probes", "remove containers", "unmount", "remove cgroup"}, n.trace)
	require.NoDirExists(t, filepath.Join(cfg.LogsDir, "default_old_uid-9"))
}

func TestNamesThatWouldLeaveTheFolderAreRefused(t *testing.T) {
	for _, bad := range []string{"..", ".", "", "a/b", "../../etc", strings.Repeat("x", 254)} {
		n := &fakeNode{phase: corev1.PodPending}
		p := pod()
		p.UID = types.UID(bad)
		_, err := newSyncer(t, config(t, n)).Sync(t.Context(), p, runtime.Pod{})
		require.ErrorIs(t, err, podsync.ErrUnsafeName, bad)
		require.NotContains(t, n.trace, "apply")
	}
}

// IM-5: a pull secret that is missing is told and left out.
func TestPullSecrets(t *testing.T) {
	n := &fakeNode{phase: corev1.PodPending}
	cfg := config(t, n)
	have := podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: "registry"}
	cfg.Objects = objects{have: {Ref: have, Data: map[string][]byte{".dockerconfigjson": []byte("hunter2")}}}
	p := pod()
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}, {Name: "absent"}}
	s := newSyncer(t, cfg)
	for range 2 {
		_, err := s.Sync(t.Context(), p, runtime.Pod{})
		require.NoError(t, err)
	}
	require.Len(t, n.material.PullSecrets, 1)
	require.Len(t, n.events, 1)
	require.Contains(t, n.events[0].Message, "absent")
	require.NotContains(t, n.events[0].Message, "hunter2")
}

// AG-1
func TestNewTellsAllFaultsAtOnce(t *testing.T) {
	_, err := podsync.New(podsync.Config{PodsDir: "relative", AdmitTimeout: -1})
	for _, want := range []string{"nil Runtime", "nil Seen", "nil Statuses", "PodsDir", "LogsDir", "negative AdmitTimeout"} {
		require.ErrorContains(t, err, want)
	}
}
