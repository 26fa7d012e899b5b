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

// fake is a Syncer and Seen that writes down what it is asked for. A call does
// what do says, or succeeds at once.
type fake struct {
	mu    sync.Mutex
	began time.Time
	calls []string
	do    func(ctx context.Context, call string, uid types.UID) (runtime.SyncResult, error)
	since map[types.UID][]time.Time
}

func (f *fake) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("%v ", time.Since(f.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (f *fake) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fake) call(ctx context.Context, what string, uid types.UID) (runtime.SyncResult, error) {
	if f.do == nil {
		return runtime.SyncResult{}, nil
	}
	return f.do(ctx, strings.Fields(what)[0], uid)
}

func (f *fake) Sync(ctx context.Context, pod *corev1.Pod, _ runtime.Pod) (runtime.SyncResult, error) {
	what := "sync " + pod.Name
	if v := pod.Labels["v"]; v != "" {
		what += " v" + v
	}
	f.note("%s", what)
	return f.call(ctx, what, pod.UID)
}

func (f *fake) Terminate(ctx context.Context, pod *corev1.Pod, _ runtime.Pod, e runtime.Termination) error {
	what := "terminate " + pod.Name
	f.note("%s %s", what, ending(e))
	_, err := f.call(ctx, what, pod.UID)
	return err
}

func (f *fake) Finish(ctx context.Context, pod *corev1.Pod, e runtime.Termination) error {
	what := "finish " + pod.Name
	f.note("%s %s", what, ending(e))
	_, err := f.call(ctx, what, pod.UID)
	return err
}

func ending(e runtime.Termination) string {
	s := fmt.Sprintf("grace=%v", e.GracePeriod)
	if e.Reason != "" {
		s += " " + e.Reason
	}
	if e.Evicted {
		s += " evicted"
	}
	if e.Deleted {
		s += " deleted"
	}
	return s
}

func (f *fake) GetNewerThan(_ context.Context, uid types.UID, at time.Time) (runtime.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since == nil {
		f.since = map[types.UID][]time.Time{}
	}
	f.since[uid] = append(f.since[uid], at)
	return runtime.Pod{UID: uid, ObservedAt: time.Now()}, nil
}

// run starts workers in a bubble. They are stopped when the test ends.
func run(t *testing.T, f *fake, change ...func(*podworkers.Config)) *podworkers.Workers {
	t.Helper()
	f.began = time.Now()
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

func pod(uid string, change ...func(*corev1.Pod)) *corev1.Pod {
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

// untilCancelled is a call that ends when it is told to.
func untilCancelled(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// PW-1, PW-8, PW-14: the way of a pod, with no timer in between.
func TestWorkers_PhasesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		w := run(t, f)
		w.Update(podworkers.Update{Type: podworkers.PodCreate, Pod: pod("a")})
		synctest.Wait()
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{Deleted: true, WaitUntilFinished: true}))
		assert.True(t, w.IsFinished("a"))
		assert.Equal(t, []string{
			"0s sync a",
			"0s terminate a grace=30s deleted",
			"0s finish a grace=30s deleted",
		}, f.take())
		w.Update(podworkers.Update{Pod: pod("a")})
		w.Requeue("a", podworkers.RequeueNow)
		time.Sleep(time.Hour)
		assert.Empty(t, f.take(), "what has finished stays finished")
		assert.Empty(t, w.SyncKnownPods(nil, true))
		assert.False(t, w.IsKnown("a"))
	})
}

// PW-8: each phase is tried again after a back-off until it succeeds.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		left := map[string]int{"sync": 1, "terminate": 2, "finish": 1}
		f.do = func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
			left[call]--
			if left[call] >= 0 {
				return runtime.SyncResult{}, errors.New("no luck")
			}
			return runtime.SyncResult{}, nil
		}
		w := run(t, f)
		w.Update(podworkers.Update{Type: podworkers.PodCreate, Pod: pod("a")})
		time.Sleep(15 * time.Second)
		require.NoError(t, w.Kill(t.Context(), "a", podworkers.KillOptions{WaitUntilFinished: true}))
		assert.Equal(t, []string{
			"0s sync a", "10s sync a",
			"15s terminate a grace=30s", "25s terminate a grace=30s", "35s terminate a grace=30s",
			"35s finish a grace=30s", "45s finish a grace=30s",
		}, f.take())
	})
}
