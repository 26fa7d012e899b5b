package status_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// fakeSink is a sink that records what it receives.
type fakeSink struct {
	mu      sync.Mutex
	phases  map[types.UID][]corev1.PodPhase
	restart map[types.UID][]int32
	deleted []types.UID
	busy    map[types.UID]bool
	most    int // sends at once
	fail    func(*corev1.Pod) error
	took    time.Duration
}

func newFakeSink() *fakeSink {
	return &fakeSink{phases: map[types.UID][]corev1.PodPhase{}, restart: map[types.UID][]int32{}, busy: map[types.UID]bool{}}
}

func (s *fakeSink) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	s.mu.Lock()
	if s.busy[pod.UID] {
		panic("two sends for one pod at a time")
	}
	s.busy[pod.UID] = true
	s.most = max(s.most, len(s.busy))
	fail := s.fail
	s.mu.Unlock()
	time.Sleep(s.took)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, pod.UID)
	if fail != nil {
		if err := fail(pod); err != nil {
			return err
		}
	}
	s.phases[pod.UID] = append(s.phases[pod.UID], st.Phase)
	if len(st.ContainerStatuses) > 0 {
		s.restart[pod.UID] = append(s.restart[pod.UID], st.ContainerStatuses[0].RestartCount)
	}
	return nil
}

func (s *fakeSink) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = append(s.deleted, pod.UID)
	return nil
}

// of returns the phases that were received of a pod.
func (s *fakeSink) of(uid types.UID) []corev1.PodPhase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.phases[uid])
}

// pause lets fake time pass and everybody come to rest.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// start runs a manager in a bubble until the returned func is called.
func start(t *testing.T, cfg status.Config) (*status.Manager, func() error) {
	t.Helper()
	m, err := status.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	return m, func() error { cancel(); return <-done }
}

// ST-6: equal statuses are sent once; what changes while a send is under way
// merges into one.
func TestMergesAndDedups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		sink.took = time.Second
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		p := pod("main:c")
		for attempt := range uint32(8) {
			m.Observe(p, runtime.Report{Observed: view(running("c", attempt))})
			m.Observe(p, runtime.Report{Observed: view(running("c", attempt))})
			pause(10 * time.Millisecond)
		}
		pause(5 * time.Second)
		assert.Equal(t, []int32{0, 7}, sink.restart[p.UID])
		m.Observe(p, runtime.Report{Observed: view(running("c", 7))})
		pause(5 * time.Second)
		assert.Len(t, sink.restart[p.UID], 2)
		m.Resend(p.UID)
		pause(5 * time.Second)
		assert.Equal(t, []int32{0, 7, 7}, sink.restart[p.UID])
		require.NoError(t, stop())
	})
}

// ST-7: ten pods at once, one send a pod, and a sink that fails for an hour
// loses nothing and then hears everything within seconds.
func TestSinkDownForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 100
		began := time.Now()
		sink := newFakeSink()
		sink.took = 10 * time.Millisecond
		sink.fail = func(*corev1.Pod) error {
			if time.Since(began) < time.Hour {
				return errors.New("unreachable")
			}
			return nil
		}
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		for i := range pods {
			p := withUID(pod("policy=Never", "main:c"), types.UID(fmt.Sprint(i)))
			m.Observe(p, runtime.Report{Observed: view()})
			m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
		}
		pause(time.Hour - 1500*time.Millisecond)
		for i := range pods {
			m.Observe(withUID(pod("policy=Never", "main:c"), types.UID(fmt.Sprint(i))), runtime.Report{Observed: view(exited("c", 0, 0))})
		}
		sink.mu.Lock()
		assert.Empty(t, sink.phases)
		sink.mu.Unlock()
		pause(10 * time.Second)
		require.Len(t, sink.phases, pods)
		for uid, phases := range sink.phases {
			assert.Equal(t, []corev1.PodPhase{corev1.PodSucceeded}, phases, uid)
		}
		assert.Equal(t, 10, sink.most)
		require.NoError(t, stop())
	})
}

// ST-7: after failures the pod that has waited longest goes first.
func TestOldestWaitingFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []types.UID
		up := false
		sink := status.SinkFunc(func(_ context.Context, pod *corev1.Pod, _ corev1.PodStatus) error {
			if !up {
				return errors.New("down")
			}
			order = append(order, pod.UID)
			return nil
		})
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, MaxParallel: 1, BackOff: time.Minute, MaxBackOff: time.Minute})
		for _, uid := range []types.UID{"a", "b", "c", "d"} {
			m.Observe(withUID(pod("main:c"), uid), runtime.Report{Observed: view()})
			pause(time.Second)
		}
		up = true
		m.Observe(withUID(pod("main:c"), "a"), runtime.Report{Observed: view(running("c", 0))}) // still the oldest
		pause(2 * time.Minute)
		assert.Equal(t, []types.UID{"a", "b", "c", "d"}, order)
		require.NoError(t, stop())
	})
}

// A sink that hangs, and one that panics, hold up no other and lose nothing.
func TestSinksAreIndependent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, late := newFakeSink(), newFakeSink()
		panics := 3
		late.fail = func(*corev1.Pod) error {
			if panics--; panics >= 0 {
				panic("sink bug")
			}
			return nil
		}
		hung := status.SinkFunc(func(ctx context.Context, _ *corev1.Pod, _ corev1.PodStatus) error {
			<-ctx.Done()
			return ctx.Err()
		})
		m, stop := start(t, status.Config{Sinks: []status.Sink{hung, late, good}})
		p := pod("main:c")
		m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
		synctest.Wait()
		assert.Equal(t, []corev1.PodPhase{corev1.PodRunning}, good.phases[p.UID])
		pause(10 * time.Second)
		assert.Equal(t, []corev1.PodPhase{corev1.PodRunning}, late.phases[p.UID])
		began := time.Now()
		require.ErrorContains(t, stop(), "1 statuses not sent to status.SinkFunc")
		assert.LessOrEqual(t, time.Since(began), 7*time.Second)
	})
}

// ST-8: the deletion is sent after the last status, and only once the pod is
// finished.
func TestDeletionWaitsForTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		p := pod("main:c")
		termination := &runtime.Termination{Deleted: true}
		m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
		pause(time.Second)
		m.Observe(p, runtime.Report{Observed: view(running("c", 0)), Termination: termination})
		m.Forget(p.UID)
		pause(time.Hour)
		assert.Empty(t, sink.deleted)
		m.Observe(p, runtime.Report{Observed: view(exited("c", 0, 0)), Termination: termination})
		pause(time.Hour)
		assert.Empty(t, sink.deleted)
		m.Observe(p, runtime.Report{Observed: view(exited("c", 0, 0)), Termination: termination, Finished: true})
		pause(time.Second)
		assert.Equal(t, []types.UID{p.UID}, sink.deleted)
		assert.Equal(t, []corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded}, sink.phases[p.UID])
		_, known := m.Get(p.UID)
		assert.False(t, known)

		m.Observe(p, runtime.Report{Observed: view()}) // the same UID lives again
		pause(time.Second)
		assert.Equal(t, corev1.PodPending, sink.phases[p.UID][2])
		require.NoError(t, stop())
	})
}

// ST-8: a source goes on to name a pod that it has marked for deletion until it
// receives the deletion of the pod. It is sent once, after the last status.
func TestManager_DeletesPodWithDeletionTimestampThatSourceStillContains(t *testing.T) {
	for name, before := range map[string]bool{"it runs when it is deleted": false, "it had finished before": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := newFakeSink()
				m, stop := start(t, status.Config{Sinks: []status.Sink{sink, status.SinkFunc(sink.ignore)}})
				p := pod("policy=Never", "main:c")
				marked := p.DeepCopy()
				marked.DeletionTimestamp = new(metav1.Now())
				ended := view(exited("c", 0, 0))
				if before {
					m.Observe(p, runtime.Report{Observed: ended, Termination: &runtime.Termination{}, Finished: true})
				} else {
					m.Observe(p, runtime.Report{Observed: view(running("c", 0))})
					pause(time.Second)
					m.Observe(marked, runtime.Report{Observed: ended, Termination: &runtime.Termination{}})
				}
				pause(time.Hour)
				assert.Empty(t, sink.deleted, "its resources are not given back, or nobody has deleted it")
				last := runtime.Report{Observed: ended, Termination: &runtime.Termination{}, Finished: true}
				m.Observe(marked, last)
				pause(time.Second)
				assert.Equal(t, []types.UID{p.UID}, sink.deleted)
				assert.Equal(t, corev1.PodSucceeded, sink.phases[p.UID][len(sink.phases[p.UID])-1])
				assert.Empty(t, m.Pods())

				m.Observe(marked, last)
				assert.Equal(t, []types.UID{p.UID}, m.PodUIDs(), "until Forget")
				m.Forget(p.UID)
				m.Forget(p.UID)
				pause(time.Hour)
				assert.Len(t, sink.deleted, 1, "it is told once")
				assert.Empty(t, m.PodUIDs())

				m.Observe(p, runtime.Report{Observed: view()}) // the same UID lives again
				pause(time.Second)
				assert.Equal(t, corev1.PodPending, sink.phases[p.UID][len(sink.phases[p.UID])-1])
				require.NoError(t, stop())
			})
		})
	}
}

func (s *fakeSink) ignore(context.Context, *corev1.Pod, corev1.PodStatus) error { return nil }

// What is pending when Run ends is sent before it returns.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		sink.took = 100 * time.Millisecond
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}})
		for i := range 100 {
			m.Observe(withUID(pod("main:c"), types.UID(fmt.Sprint(i))), runtime.Report{Observed: view()})
		}
		require.NoError(t, stop())
		assert.Len(t, sink.phases, 100)
	})
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := status.New(status.Config{Sinks: []status.Sink{nil}, Timeout: -1, MaxParallel: -2})
	require.ErrorContains(t, err, "Config.Sinks[0] is nil")
	require.ErrorContains(t, err, "Config.Timeout must not be negative")
	require.ErrorContains(t, err, "Config.MaxParallel must not be negative")
}
