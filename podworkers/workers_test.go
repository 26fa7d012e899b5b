package podworkers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// fakeSyncer is a Syncer and an Inspector that records its calls. A call runs do, or
// succeeds at once if that is nil.
type fakeSyncer struct {
	mu        sync.Mutex
	startTime time.Time
	calls     []string
	do        func(ctx context.Context, call string, uid types.UID) (runtime.SyncResult, error)
	newerThan map[types.UID][]time.Time // arguments of GetNewerThan
	isRunning func(types.UID) bool      // default: all pods are running
}

func (f *fakeSyncer) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("%v ", time.Since(f.startTime).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (f *fakeSyncer) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fakeSyncer) call(ctx context.Context, what string, uid types.UID) (runtime.SyncResult, error) {
	if f.do == nil {
		return runtime.SyncResult{}, nil
	}
	return f.do(ctx, strings.Fields(what)[0], uid)
}

func (f *fakeSyncer) Sync(ctx context.Context, pod *corev1.Pod, _ runtime.Pod) (runtime.SyncResult, error) {
	what := "sync " + pod.Name
	if v := pod.Labels["v"]; v != "" {
		what += " v" + v
	}
	f.note("%s", what)
	return f.call(ctx, what, pod.UID)
}

func (f *fakeSyncer) Terminate(ctx context.Context, pod *corev1.Pod, _ runtime.Pod, t runtime.Termination) error {
	what := "terminate " + pod.Name
	f.note("%s %s", what, describe(t))
	_, err := f.call(ctx, what, pod.UID)
	return err
}

func (f *fakeSyncer) Finish(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error {
	what := "finish " + pod.Name
	f.note("%s %s", what, describe(t))
	_, err := f.call(ctx, what, pod.UID)
	return err
}

func describe(t runtime.Termination) string {
	s := fmt.Sprintf("grace=%v", t.GracePeriod)
	if t.Reason != "" {
		s += " " + t.Reason
	}
	if t.Evicted {
		s += " evicted"
	}
	if t.Deleted {
		s += " deleted"
	}
	return s
}

func (f *fakeSyncer) GetNewerThan(_ context.Context, uid types.UID, at time.Time) (runtime.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.newerThan == nil {
		f.newerThan = map[types.UID][]time.Time{}
	}
	f.newerThan[uid] = append(f.newerThan[uid], at)
	return runtime.Pod{UID: uid, ObservedAt: time.Now()}, nil
}

func (f *fakeSyncer) IsRunning(uid types.UID) bool { return f.isRunning == nil || f.isRunning(uid) }

// observer has the functions of an Observer. Each may be nil.
type observer struct {
	started func(types.UID)
	ended   func(uid types.UID, changed bool)
}

func (o observer) SyncStarted(uid types.UID) {
	if o.started != nil {
		o.started(uid)
	}
}

func (o observer) SyncEnded(uid types.UID, changed bool) {
	if o.ended != nil {
		o.ended(uid, changed)
	}
}

// runWorkers runs Workers in a bubble until the test ends.
func runWorkers(t *testing.T, f *fakeSyncer, change ...func(*podworkers.Config)) *podworkers.Workers {
	t.Helper()
	f.startTime = time.Now()
	cfg := podworkers.Config{Syncer: f, Inspector: f, Jitter: 1e-12}
	for _, c := range change {
		c(&cfg)
	}
	w, err := podworkers.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, w.Run(ctx)) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	synctest.Wait()
	return w
}

func newTestPod(uid string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "ns", Name: uid}}
	p.Spec.TerminationGracePeriodSeconds = new(int64(30))
	for _, c := range change {
		c(p)
	}
	return p
}

func static(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Name = name
		p.Annotations = map[string]string{podspec.AnnotationSource: "file"}
	}
}

func version(v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"v": v} }
}

func deleted(grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		p.DeletionGracePeriodSeconds = &grace
	}
}

func phase(ph corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = ph }
}

// untilCancelled waits until ctx is done and returns the cause.
func untilCancelled(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// PW-1, PW-8, PW-14: all phases of a pod, without a delay in between.
func TestWorkers_PhasesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		w := runWorkers(t, f)
		w.Update(podworkers.Update{Type: podworkers.PodCreate, Pod: newTestPod("a")})
		synctest.Wait()
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{Termination: runtime.Termination{Deleted: true}, WaitUntilFinished: true}))
		assert.True(t, w.IsFinished("a"))
		assert.Equal(t, []string{
			"0s sync a",
			"0s terminate a grace=30s deleted",
			"0s finish a grace=30s deleted",
		}, f.take())
		w.Update(podworkers.Update{Pod: newTestPod("a")})
		w.Requeue("a", podworkers.RequeueNow)
		time.Sleep(time.Hour)
		assert.Empty(t, f.take(), "a finished pod is not called again")
		assert.Empty(t, w.SyncKnownPods(nil, true))
		assert.False(t, w.IsKnown("a"))
	})
}

// PW-8: each phase is retried with back-off until it succeeds.
func TestWorkers_RetriesEachPhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		left := map[string]int{"sync": 1, "terminate": 2, "finish": 1}
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			left[call]--
			if left[call] >= 0 {
				return runtime.SyncResult{}, errors.New("sync failed")
			}
			return runtime.SyncResult{}, nil
		}
		w := runWorkers(t, f)
		w.Update(podworkers.Update{Type: podworkers.PodCreate, Pod: newTestPod("a")})
		time.Sleep(15 * time.Second)
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{WaitUntilFinished: true}))
		assert.Equal(t, []string{
			"0s sync a", "10s sync a",
			"15s terminate a grace=30s", "25s terminate a grace=30s", "35s terminate a grace=30s",
			"35s finish a grace=30s", "45s finish a grace=30s",
		}, f.take())
	})
}
