package podworkers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// SL-5: the heap behaves like a list that is searched.
func TestRequeueTimes_MatchList(t *testing.T) {
	start := time.Now()
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var r requeueTimes
		naive := map[types.UID]time.Time{}
		now := start
		for range 200 {
			switch rnd.IntN(4) {
			case 0, 1:
				uid, at := types.UID(fmt.Sprint(rnd.IntN(20))), now.Add(time.Duration(rnd.IntN(100)-5)*time.Second)
				r.set(uid, at)
				naive[uid] = at
			case 2:
				uid := types.UID(fmt.Sprint(rnd.IntN(20)))
				r.set(uid, time.Time{})
				delete(naive, uid)
			case 3:
				now = now.Add(time.Duration(rnd.IntN(20)) * time.Second)
				var want []types.UID
				for uid, at := range naive {
					if !at.After(now) {
						want = append(want, uid)
					}
				}
				got := r.take(now)
				require.True(t, slices.IsSortedFunc(got, func(a, b types.UID) int { return naive[a].Compare(naive[b]) }))
				require.ElementsMatch(t, want, got)
				for _, uid := range want {
					delete(naive, uid)
				}
			}
			var first time.Time
			for _, at := range naive {
				if first.IsZero() || at.Before(first) {
					first = at
				}
			}
			require.True(t, first.Equal(r.next()), "%v, not %v", r.next(), first)
			require.Len(t, r.pods, len(naive))
			require.Len(t, r.pods, len(naive))
			overdue := 0
			for _, at := range naive {
				if at.Before(now) {
					overdue++
				}
			}
			require.Equal(t, overdue, r.overdue(now))
		}
	}
}

// SL-5: many resyncs have few times, equal to the nanosecond, so that they share an item of the queue.
func TestNextResync_SharesTimes(t *testing.T) {
	const period, spread = 5 * time.Minute, 0.5
	p := policy{origin: time.Now(), settledPeriod: period, spread: spread, jitter: jitter(spread)}
	var r requeueTimes
	for i := range 1000 {
		now := time.Now()
		at := p.nextResync(true, uint32(i), now)
		require.WithinRange(t, at, now.Add(period), now.Add(period+period/2))
		r.set(types.UID(fmt.Sprint(i)), at)
	}
	const most = maxWindows + 2 // with those that begin meanwhile
	assert.LessOrEqual(t, r.queue.Len(), most)
	assert.Greater(t, r.queue.Len(), maxWindows*3/4, "the resyncs of many pods are spread over all of the jitter")
	assert.Len(t, r.times, r.queue.Len())
	for _, item := range r.times {
		assert.Less(t, len(item.Value.uids), 3*1000/most)
	}
	assert.Len(t, r.take(p.origin.Add(2*period)), 1000)
	assert.Empty(t, r.times)
	assert.Empty(t, r.pods)
}

// SL-5: pods of a cohort come to be resynced together, and remain so, even if each was synced for the first time, or for
// a reason of its own, at another time.
func TestNextResync_KeepsCohortsTogether(t *testing.T) {
	const pods, period, spread = 64, 5 * time.Minute, 0.5
	p := policy{origin: time.Now(), settledPeriod: period, spread: spread, jitter: jitter(spread)}
	together := 0 // cohorts
	for cohort := range uint32(100) {
		due := make([]time.Time, pods)
		for i := range due {
			due[i] = p.origin.Add(time.Duration(i) * 20 * time.Second / pods) // the burst of their starts takes 20 s
		}
		for range 8 {
			for i, at := range due {
				due[i] = p.nextResync(true, cohort, at)
			}
		}
		if due[0].Equal(due[pods-1]) && due[0].Equal(due[pods/2]) {
			together++
		}
	}
	assert.Greater(t, together, 90)
}

// countingSyncer counts its syncs.
type countingSyncer struct{ syncs atomic.Int32 }

func (s *countingSyncer) Sync(context.Context, *corev1.Pod, runtime.Pod) (runtime.SyncResult, error) {
	s.syncs.Add(1)
	return runtime.SyncResult{}, nil
}

func (*countingSyncer) Terminate(context.Context, *corev1.Pod, runtime.Pod, runtime.Termination) error {
	return nil
}

func (*countingSyncer) Finish(context.Context, *corev1.Pod, runtime.Termination) error { return nil }

func (*countingSyncer) GetNewerThan(context.Context, types.UID, time.Time) (runtime.Pod, error) {
	return runtime.Pod{}, nil
}

func (*countingSyncer) IsRunning(types.UID) bool { return true }

// runCounting runs Workers with one pod, a, that was synced.
func runCounting(t *testing.T) (*Workers, *countingSyncer) {
	t.Helper()
	s := &countingSyncer{}
	w, err := New(Config{Syncer: s, Inspector: s, Jitter: 1e-12})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); synctest.Wait() })
	go func() { assert.NoError(t, w.Run(ctx)) }()
	w.Update(Update{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a", Namespace: "ns", Name: "a"}}})
	synctest.Wait()
	require.EqualValues(t, 1, s.syncs.Load())
	return w, s
}

// SL-5, PW-16: the timer fires when a pod is due, and only then, and there is none
// without pods.
func TestWorkers_OneTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := runCounting(t)
		w.mu.Lock()
		assert.Len(t, w.requeues.pods, 1)
		assert.Equal(t, time.Minute, time.Until(w.timerAt).Round(time.Second))
		w.mu.Unlock()
		time.Sleep(30 * time.Second)
		w.Requeue("a", RequeueNow)
		synctest.Wait()
		assert.EqualValues(t, 2, s.syncs.Load())
		time.Sleep(59 * time.Second)
		assert.EqualValues(t, 2, s.syncs.Load(), "the sync has replaced the requeue")
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 3, s.syncs.Load())
		require.NoError(t, w.Kill(t.Context(), "a", KillOptions{Termination: runtime.Termination{Deleted: true}, WaitUntilFinished: true}))
		w.mu.Lock()
		assert.Empty(t, w.requeues.pods)
		assert.Zero(t, w.timerAt)
		assert.False(t, w.timer.Stop(), "the timer is stopped")
		w.mu.Unlock()
	})
}

// SL-2: no pod is requeued while requeues are paused, and those that are due are
// requeued at once afterwards.
func TestWorkers_PauseRequeues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := runCounting(t)
		w.PauseRequeues(true)
		w.PauseRequeues(true)
		time.Sleep(time.Hour)
		assert.EqualValues(t, 1, s.syncs.Load())
		w.Requeue("a", RequeueNow)
		synctest.Wait()
		assert.EqualValues(t, 2, s.syncs.Load(), "a request is no requeue")
		time.Sleep(time.Hour)
		assert.EqualValues(t, 2, s.syncs.Load())
		w.PauseRequeues(false)
		synctest.Wait()
		assert.EqualValues(t, 3, s.syncs.Load())
		time.Sleep(61 * time.Second)
		assert.EqualValues(t, 4, s.syncs.Load())
	})
}

// SL-8: pods that are due and not requeued are counted, without the time during
// which requeues were paused.
func TestWorkers_OverduePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const threshold = 2 * time.Minute
		w, s := runCounting(t)
		time.Sleep(time.Hour)
		assert.Zero(t, w.OverduePods(threshold))
		w.PauseRequeues(true)
		time.Sleep(time.Hour)
		assert.Zero(t, w.OverduePods(threshold), "requeues are paused")
		before := s.syncs.Load()
		w.PauseRequeues(false)
		assert.Zero(t, w.OverduePods(threshold), "requeues have just resumed")
		synctest.Wait()
		assert.EqualValues(t, before+1, s.syncs.Load())

		w.mu.Lock()
		w.timer.Stop() // a defect
		w.mu.Unlock()
		time.Sleep(time.Minute + threshold)
		assert.Zero(t, w.OverduePods(threshold))
		time.Sleep(time.Second)
		assert.Equal(t, 1, w.OverduePods(threshold))
	})
}

// The timer does nothing after the end of Run.
func TestWorkers_TimerAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countingSyncer{}
		w, err := New(Config{Syncer: s, Inspector: s})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		w.Update(Update{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}})
		synctest.Wait()
		cancel()
		require.NoError(t, <-done)
		assert.Zero(t, w.timerAt)
		assert.False(t, w.timer.Stop(), "the timer is stopped")
		time.Sleep(time.Hour)
		w.requeueDue() // it had fired already
		assert.EqualValues(t, 1, s.syncs.Load())
		st, ok := w.State("a")
		assert.True(t, ok)
		assert.NotZero(t, st.RequeueAt)
	})
}
