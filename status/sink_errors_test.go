package status_test

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// countingSink is a sink that records the restart counts it receives, and when.
type countingSink struct {
	answer func(ctx context.Context) error

	mu      sync.Mutex // guards the rest
	counts  map[types.UID][]int32
	calls   int
	deleted int
}

func newCountingSink(answer func(ctx context.Context) error) *countingSink {
	return &countingSink{answer: answer, counts: map[types.UID][]int32{}}
}

func (l *countingSink) SetStatus(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	l.mu.Lock()
	l.calls++
	l.mu.Unlock()
	if err := l.answer(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[pod.UID] = append(l.counts[pod.UID], st.ContainerStatuses[0].RestartCount)
	return nil
}

func (l *countingSink) DeleteStatus(ctx context.Context, _ *corev1.Pod) error {
	if err := l.answer(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deleted++
	return nil
}

func (l *countingSink) of(uid types.UID) []int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.counts[uid])
}

// all returns how many pods it has heard of, and how often it was called.
func (l *countingSink) all() (pods, calls int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.counts), l.calls
}

// ST-7: fifty pods change every half minute for an hour. One sink is down all the
// time, one panics, one hangs until it is cut off, one takes 20 s to answer, and
// one is well. The one that is well hears each change in the moment it happens, no
// sink hears anything out of order or twice, what is kept does not grow, and when
// the hour is over all hear of everything within seconds.
func TestSinksInTrouble(t *testing.T) {
	const pods, changes = 50, 120
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		during := func(trouble func(ctx context.Context) error) *countingSink {
			return newCountingSink(func(ctx context.Context) error {
				if time.Since(began) >= time.Hour {
					return nil
				}
				return trouble(ctx)
			})
		}
		sinks := map[string]*countingSink{
			"down":   during(func(context.Context) error { return errors.New("unreachable") }),
			"panics": during(func(context.Context) error { panic("a sink's bug") }),
			"hangs":  during(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }),
			"slow":   during(func(context.Context) error { time.Sleep(20 * time.Second); return nil }),
			"well":   newCountingSink(func(context.Context) error { return nil }),
		}
		var all []status.Sink
		for _, s := range sinks {
			all = append(all, s)
		}
		m, stop := start(t, status.Config{Sinks: all})
		p := make([]*corev1.Pod, pods)
		for i := range p {
			p[i] = withUID(pod("main:c"), types.UID(fmt.Sprint(i)))
		}
		var kept uint64
		for n := range changes {
			for i := range p {
				m.Observe(p[i], runtime.Report{Observed: view(running("c", uint32(n)))})
			}
			synctest.Wait()
			for i := range p {
				require.Len(t, sinks["well"].of(p[i].UID), n+1, "each change is heard at once")
			}
			switch now := heap(); n {
			case 10:
				kept = now
			case changes - 1:
				assert.Less(t, now, kept+4<<20, "what is kept has grown")
			}
			if n < changes-1 {
				time.Sleep(30 * time.Second)
			}
		}
		for _, dead := range []string{"down", "panics", "hangs"} {
			pods, calls := sinks[dead].all()
			require.Zero(t, pods, dead)
			assert.Less(t, calls, 1000, "%s is tried now and then, not all the time", dead)
		}
		pause(time.Hour - time.Since(began) + 10*time.Second)
		for name, s := range sinks {
			if name == "hangs" || name == "slow" {
				continue // the calls under way have not ended yet
			}
			for i := range p {
				requireReceived(t, name, s, p[i].UID)
			}
		}
		pause(30 * time.Second)
		for _, name := range []string{"hangs", "slow"} {
			for i := range p {
				requireReceived(t, name, sinks[name], p[i].UID)
			}
		}
		for i := range p {
			m.Observe(p[i], runtime.Report{Observed: view(), Termination: &runtime.Termination{Deleted: true}, Finished: true})
			m.Forget(p[i].UID)
		}
		pause(10 * time.Second)
		for name, s := range sinks {
			s.mu.Lock()
			assert.Equal(t, pods, s.deleted, name)
			s.mu.Unlock()
		}
		assert.Empty(t, m.PodUIDs())
		require.NoError(t, stop())
	})
}

// requireReceived asserts that a sink received the last of a pod's changes, and the others
// in order or not at all.
func requireReceived(t *testing.T, name string, s *countingSink, uid types.UID) {
	t.Helper()
	counts := s.of(uid)
	require.NotEmpty(t, counts, "%s never heard of pod %s", name, uid)
	assert.Equal(t, int32(119), counts[len(counts)-1], "%s has not heard the newest of pod %s", name, uid)
	for i := 1; i < len(counts); i++ {
		assert.Less(t, counts[i-1], counts[i], "%s: pod %s", name, uid)
	}
}

func heap() uint64 {
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return m.HeapAlloc
}

// ST-7: what is left at the end is sent as wide as ever, though the sink was down.
func TestSinkDownUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Bool
		sink := newCountingSink(func(ctx context.Context) error {
			if !back.Load() {
				return errors.New("unreachable")
			}
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, FlushTimeout: 4500 * time.Millisecond})
		for i := range 40 {
			m.Observe(withUID(pod("main:c"), types.UID(fmt.Sprint(i))), runtime.Report{Observed: view(running("c", 0))})
		}
		pause(time.Second)
		back.Store(true)
		require.NoError(t, stop())
		pods, _ := sink.all()
		assert.Equal(t, 40, pods)
	})
}

// Pods that a sink will never take hold up no others, though it looks as if it were
// down.
func TestPodsThatASinkRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := newFakeSink()
		rejected := map[types.UID]bool{}
		sink.fail = func(p *corev1.Pod) error {
			if rejected[p.UID] {
				return errors.New("not this one")
			}
			return nil
		}
		for i := range 40 {
			rejected[types.UID(fmt.Sprint("bad-", i))] = true
		}
		m, stop := start(t, status.Config{Sinks: []status.Sink{sink}, FlushTimeout: time.Second})
		for uid := range rejected {
			m.Observe(withUID(pod("main:c"), uid), runtime.Report{Observed: view(running("c", 0))})
		}
		for n := range uint32(30) {
			pause(time.Minute)
			for _, uid := range []types.UID{"good-1", "good-2"} {
				m.Observe(withUID(pod("main:c"), uid), runtime.Report{Observed: view(running("c", n))})
				synctest.Wait()
				sink.mu.Lock()
				require.Len(t, sink.restart[uid], int(n)+1, "%s waits for those that are refused", uid)
				sink.mu.Unlock()
			}
		}
		require.ErrorContains(t, stop(), "40 statuses not sent")
	})
}
