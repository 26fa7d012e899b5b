package podsync_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// fakeNode implements all dependencies of a Syncer and records the order of the calls.
type fakeNode struct {
	mu       sync.Mutex
	trace    []string
	observed runtime.Pod
	applied  runtime.ApplyResult
	fail     map[string]error // by step
	enter    func(string)     // called at each step; may be nil
	reports  []runtime.Report
	phase    corev1.PodPhase
	saved    corev1.PodStatus // by a previous process
	start    *metav1.Time
	counts   []corev1.ContainerStatus
	reported []corev1.PodCondition
	plan     []runtime.Action
	events   []*corev1.Event
	kills    []runtime.Termination // requested
	killed   runtime.Termination   // the last
	opts     runtime.RunOptions
	newer    time.Time   // than which the last inspection was to be
	askedAt  time.Time   // the last RequestInspection
	inUse    error       // why the limit of the cgroup is not lowered yet
	limited  *corev1.Pod // whose limits the cgroup was to get last
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
	n.mu.Lock()
	defer n.mu.Unlock()
	n.plan = plan
	n.opts = m
	return n.applied
}

func (n *fakeNode) Kill(_ context.Context, _ *corev1.Pod, _ runtime.Pod, t runtime.Termination) error {
	n.mu.Lock()
	n.killed = t
	n.mu.Unlock()
	return n.step("kill")
}
func (n *fakeNode) Remove(context.Context, runtime.Pod) error { return n.step("remove containers") }
func (n *fakeNode) GetNewerThan(_ context.Context, _ types.UID, at time.Time) (runtime.Pod, error) {
	n.newer = at
	return n.observed, n.step("inspect")
}

func (n *fakeNode) RequestInspection(types.UID) {
	n.askedAt = time.Now()
	_ = n.step("request inspection")
}

func (n *fakeNode) Observe(_ *corev1.Pod, r runtime.Report) corev1.PodStatus {
	_ = n.step("status")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reports = append(n.reports, r)
	return corev1.PodStatus{Phase: n.phase, StartTime: n.start, ContainerStatuses: n.counts, Conditions: n.reported}
}

func (n *fakeNode) Get(types.UID) (corev1.PodStatus, bool) { return n.saved, n.saved.Phase != "" }

func (n *fakeNode) Mount(context.Context, *corev1.Pod, podspec.Objects) (map[string]runtime.Volume, error) {
	return map[string]runtime.Volume{"data": {HostPath: "/somewhere"}}, n.step("mount") // of an error, ErrNotUpdated alone lets them count
}
func (n *fakeNode) Unmount(context.Context, types.UID) error { return n.step("unmount") }
func (n *fakeNode) SubPath(_ context.Context, uid types.UID, container string, v runtime.Volume, subPath string) (string, error) {
	return filepath.Join(v.HostPath, string(uid), container, subPath), nil
}
func (n *fakeNode) AddPod(*corev1.Pod)                             { _ = n.step("probes") }
func (n *fakeNode) StopLivenessAndStartup(types.UID)               { _ = n.step("stop probes") }
func (n *fakeNode) Results(types.UID) runtime.PodProbeResults      { return nil }
func (n *fakeNode) Record(e *corev1.Event)                         { n.events = append(n.events, e) }
func (n *fakeNode) RequestKill(_ types.UID, e runtime.Termination) { n.kills = append(n.kills, e) }

type probes struct{ *fakeNode }

func (p probes) RemovePod(types.UID) { _ = p.step("remove probes") }

type cgroups struct{ *fakeNode }

func (c cgroups) Ensure(_ context.Context, pod *corev1.Pod) (string, error) {
	c.limited = pod
	if err := c.step("cgroup"); err != nil {
		return "", err
	}
	return "/kubepods/podx", c.inUse
}

func (c cgroups) Raise(_ context.Context, pod *corev1.Pod) (string, error) {
	c.limited = pod
	return "/kubepods/podx", errors.Join(c.step("raise cgroup"), c.inUse)
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

func newTestPod() *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox:1"}}},
	}
	podspec.Default(p)
	return p
}

func newConfig(t *testing.T, n *fakeNode) podsync.Config {
	t.Helper()
	dir := t.TempDir()
	return podsync.Config{
		Runtime: n, PodCache: n, Statuses: n, Volumes: n, Cgroups: cgroups{n}, Probes: probes{n}, Recorder: n, PodKiller: n,
		PodsDir: filepath.Join(dir, "pods"), LogsDir: filepath.Join(dir, "logs"),
	}
}

func newSyncer(t *testing.T, cfg podsync.Config) *podsync.Syncer {
	t.Helper()
	s, err := podsync.New(cfg)
	require.NoError(t, err)
	return s
}

// admitter is a function as a SoftAdmitter.
type admitter func(context.Context) (podspec.AdmitResult, error)

func (a admitter) Admit(ctx context.Context, _ *corev1.Pod) (podspec.AdmitResult, error) {
	return a(ctx)
}
