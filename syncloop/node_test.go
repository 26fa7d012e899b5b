package syncloop_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/syncloop"
)

// fakeNode is a node with a runtime that answers immediately. It outlives the agents
// that run on it.
type fakeNode struct {
	mu     sync.Mutex
	pods   map[types.UID]runtime.Pod
	things map[types.UID]bool // resources of a PodStore
	ends   time.Duration      // duration of a termination
	drops  time.Duration      // duration of a removal from the PodStore
	down   error
	began  time.Time
	lines  []string
	quiet  bool // record no calls
}

func newFakeNode() *fakeNode {
	return &fakeNode{pods: map[types.UID]runtime.Pod{}, things: map[types.UID]bool{}, began: time.Now()}
}

func (m *fakeNode) note(format string, args ...any) {
	if m.quiet {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, fmt.Sprintf("%v ", time.Since(m.began))+fmt.Sprintf(format, args...))
}

func (m *fakeNode) take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines := m.lines
	m.lines = nil
	return lines
}

func (m *fakeNode) setDown(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = err
}

func (m *fakeNode) get(uid types.UID) (runtime.Pod, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pods[uid]
	p.UID = uid
	return p, ok
}

// agent is a loop with real workers and a Housekeeper on a fakeNode.
type agent struct {
	*fakeNode
	workers     *podworkers.Workers
	loop        *syncloop.Loop
	housekeeper *syncloop.Housekeeper
	changes     chan podsource.Change
	stop        func()

	mu         sync.Mutex
	known      map[types.UID]bool // state of the last inspection
	events     []pleg.Event
	notify     chan struct{}
	saved      map[types.UID]corev1.PodStatus
	pods       map[types.UID]*corev1.Pod // the desired pods
	unsynced   map[string]bool           // sources that have not synced
	recheck    chan struct{}
	running    map[types.UID]bool // pods that a sync has observed running
	progressCh chan struct{}      // one slot: a pod was observed running or was cleaned up
}

func start(tb testing.TB, m *fakeNode, silent ...string) *agent {
	tb.Helper()
	a := &agent{
		fakeNode: m, changes: make(chan podsource.Change), known: map[types.UID]bool{}, notify: make(chan struct{}, 1),
		saved: map[types.UID]corev1.PodStatus{}, pods: map[types.UID]*corev1.Pod{}, unsynced: map[string]bool{}, running: map[types.UID]bool{}, progressCh: make(chan struct{}, 1), recheck: make(chan struct{}, 1),
	}
	for uid := range m.pods {
		a.known[uid] = true
	}
	for _, s := range silent {
		a.unsynced[s] = true
	}
	var err error
	a.workers, err = podworkers.New(podworkers.Config{
		Syncer: a, Inspector: a, Observer: a, Jitter: 1e-12,
	})
	require.NoError(tb, err)
	pods, err := syncloop.NewPodManager(syncloop.PodManagerConfig{
		Workers: a.workers, Statuses: a, Inspector: a,
		Hooks: syncloop.PodManagerHooks{Adopted: func(pod *corev1.Pod) { m.note("adopt %s", pod.UID) }},
	})
	require.NoError(tb, err)
	a.housekeeper, err = syncloop.NewHousekeeper(syncloop.HousekeeperConfig{
		Workers: a.workers, PodManager: pods, Sources: a, PodCache: podCache{a},
		Stores: []syncloop.PodStore{{Name: "things", PodUIDs: a.kept, Remove: a.drop}},
	})
	require.NoError(tb, err)
	a.loop, err = syncloop.New(syncloop.Config{
		Changes: a.changes, Handler: pods, Workers: a.workers, RuntimeState: a, Events: a, Cleaner: a.housekeeper,
	})
	require.NoError(tb, err)
	a.run(tb)
	return a
}

func (a *agent) run(tb testing.TB) {
	var loop, workers sync.WaitGroup
	ctx, cancel := context.WithCancel(tb.Context())
	wctx, wcancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	loop.Go(func() { assert.NoError(tb, a.loop.Run(ctx)) })
	workers.Go(func() { assert.NoError(tb, a.workers.Run(wctx)) })
	a.stop = sync.OnceFunc(func() {
		cancel()
		loop.Wait()
		wcancel()
		workers.Wait()
	})
	tb.Cleanup(a.stop)
}

func (a *agent) Ready(context.Context) error {
	a.fakeNode.mu.Lock()
	defer a.fakeNode.mu.Unlock()
	return a.down
}

func (a *agent) Recheck() <-chan struct{} { return a.recheck }

// The Syncer.

func (a *agent) Sync(_ context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error) {
	if len(observed.Sandboxes) > 0 {
		a.note("sync %s: runs", pod.UID)
		a.mu.Lock()
		a.running[pod.UID] = true
		a.mu.Unlock()
		a.signalProgress()
		return runtime.SyncResult{Unchanged: true}, nil
	}
	a.note("sync %s: start", pod.UID)
	a.fakeNode.mu.Lock()
	defer a.fakeNode.mu.Unlock()
	a.things[pod.UID] = true
	a.fakeNode.pods[pod.UID] = runtime.Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name,
		Sandboxes: []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, Source: pod.Annotations[podspec.AnnotationSource], GracePeriod: 30 * time.Second}},
	}
	return runtime.SyncResult{}, nil
}

func (a *agent) Terminate(ctx context.Context, pod *corev1.Pod, _ runtime.Pod, e runtime.Termination) error {
	a.note("terminate %s grace=%v", pod.UID, e.GracePeriod)
	if a.ends > 0 {
		timer := time.NewTimer(min(a.ends, e.GracePeriod))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	a.fakeNode.mu.Lock()
	delete(a.fakeNode.pods, pod.UID)
	a.fakeNode.mu.Unlock()
	a.mu.Lock()
	delete(a.running, pod.UID)
	a.mu.Unlock()
	a.inspect(pod.UID) // observes that it is removed
	return nil
}

func (a *agent) Finish(_ context.Context, pod *corev1.Pod, _ runtime.Termination) error {
	a.note("finish %s", pod.UID)
	return nil
}

// The inspector and the PLEG.

func (a *agent) IsRunning(uid types.UID) bool {
	_, ok := a.get(uid)
	return ok
}

func (*agent) Uninspected() []types.UID { return nil }
func (*agent) SyncStarted(types.UID)    {}

func (a *agent) SyncEnded(uid types.UID, changed bool) {
	if changed {
		a.inspect(uid)
	}
}

func (a *agent) GetNewerThan(_ context.Context, uid types.UID, _ time.Time) (runtime.Pod, error) {
	p, _ := a.get(uid)
	return p, nil
}

func (a *agent) inspect(uid types.UID) {
	_, is := a.get(uid)
	a.mu.Lock()
	defer a.mu.Unlock()
	if was := a.known[uid]; was == is {
		return
	}
	a.known[uid] = is
	kind := pleg.ContainerStarted
	if !is {
		kind = pleg.ContainerDied
	}
	a.events = append(a.events, pleg.Event{Type: kind, UID: uid})
	notify.Send(a.notify)
}

func (a *agent) Notify() <-chan struct{} { return a.notify }

func (a *agent) Drain() []pleg.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	events := a.events
	a.events = nil
	return events
}

// podCache is what the agent has observed.
type podCache struct{ *agent }

func (a podCache) Pods() (pods []runtime.Pod) {
	a.fakeNode.mu.Lock()
	defer a.fakeNode.mu.Unlock()
	for _, p := range a.fakeNode.pods {
		pods = append(pods, p)
	}
	return pods
}

// The PodStore.

func (a *agent) kept() (uids []types.UID, err error) {
	a.fakeNode.mu.Lock()
	defer a.fakeNode.mu.Unlock()
	for uid := range a.things {
		uids = append(uids, uid)
	}
	return uids, nil
}

func (a *agent) drop(_ context.Context, uid types.UID) error {
	a.note("drop %s", uid)
	time.Sleep(a.drops)
	a.fakeNode.mu.Lock()
	defer a.fakeNode.mu.Unlock()
	delete(a.things, uid)
	a.signalProgress()
	return nil
}

func (a *agent) signalProgress() {
	notify.Send(a.progressCh)
}

// The statuses.

func (a *agent) Get(uid types.UID) (corev1.PodStatus, bool) {
	st, ok := a.saved[uid]
	return st, ok
}

func (a *agent) Observe(*corev1.Pod, runtime.Report) corev1.PodStatus { return corev1.PodStatus{} }
func (a *agent) Reject(*corev1.Pod, string, string) corev1.PodStatus  { return corev1.PodStatus{} }
func (a *agent) Forget(uid types.UID)                                 { delete(a.saved, uid) }

// The sources.

func (a *agent) HasSynced(source string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if source == "" {
		return len(a.unsynced) == 0
	}
	return !a.unsynced[source]
}

func (a *agent) MayBeDesired(source, _, _ string) bool { return !a.HasSynced(source) }

func (a *agent) Pods() (pods []*corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pods {
		pods = append(pods, p)
	}
	return pods
}

// syncSource delivers the complete set of a source for the first time.
func (a *agent) syncSource(source string, pods ...*corev1.Pod) {
	a.mu.Lock()
	delete(a.unsynced, source)
	a.mu.Unlock()
	a.change(podsource.Add, pods...)
}

func (a *agent) change(op podsource.Op, pods ...*corev1.Pod) {
	a.mu.Lock()
	for _, p := range pods {
		if op == podsource.Remove {
			delete(a.pods, p.UID)
		} else {
			a.pods[p.UID] = p
		}
	}
	a.mu.Unlock()
	a.changes <- podsource.Change{Op: op, Pods: pods}
}

func pod(uid string, name ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		UID: types.UID(uid), Namespace: "ns", Name: uid, Annotations: map[string]string{podspec.AnnotationSource: "file"},
	}}
	if len(name) > 0 {
		p.Name = name[0]
	}
	return p
}

func of(source string, p *corev1.Pod) *corev1.Pod {
	p.Annotations[podspec.AnnotationSource] = source
	return p
}
