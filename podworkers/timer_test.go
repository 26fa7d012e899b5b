package podworkers_test

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// PW-2: pods that probably need nothing are resynced one after another, because that costs
// less. When a call blocks, the others do not wait for it.
func TestWorkers_ResyncsTogether(t *testing.T) {
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		took    []time.Duration // of the calls of the resync, in their order
		changed bool            // by each sync
		want    []time.Duration // starts of these
	}{
		"quick":                    {took: []time.Duration{ms, ms, ms, ms}, want: []time.Duration{0, ms, 2 * ms, 3 * ms}},
		"slow":                     {took: []time.Duration{20 * ms, 20 * ms, 20 * ms, 20 * ms}, want: []time.Duration{0, 20 * ms, 25 * ms, 25 * ms}},
		"one blocks":               {took: []time.Duration{0, time.Hour, 0, 0}, want: []time.Duration{0, 0, 25 * ms, 25 * ms}},
		"they change at each sync": {changed: true, took: []time.Duration{ms, ms, ms, ms}, want: []time.Duration{0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				resync := time.Now().Add(time.Minute)
				var mu sync.Mutex
				var starts []time.Duration
				f := &fakeSyncer{}
				f.do = func(ctx context.Context, _ string, _ types.UID) (runtime.SyncResult, error) {
					result := runtime.SyncResult{Unchanged: !tc.changed}
					since := time.Since(resync)
					if since < 0 {
						return result, nil
					}
					mu.Lock()
					starts = append(starts, since)
					took := tc.took[len(starts)-1]
					mu.Unlock()
					return result, sleep.For(ctx, took)
				}
				w := runWorkers(t, f)
				for _, uid := range []string{"a", "b", "c", "d"} {
					w.Update(podworkers.Update{Pod: newTestPod(uid)})
				}
				time.Sleep(time.Minute + 50*ms)
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, tc.want, starts)
			})
		})
	}
}

// PW-2: of many such pods one is resynced at a time, and a call that blocks delays few of them.
func TestWorkers_ResyncsManyTogether(t *testing.T) {
	const pods, took = 150, 100 * time.Microsecond
	for _, blocks := range []bool{false, true} {
		t.Run(fmt.Sprintf("blocks=%t", blocks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				resync := time.Now().Add(time.Minute)
				var mu sync.Mutex
				calls, underWay, most, last := 0, 0, 0, time.Duration(0)
				f := &fakeSyncer{}
				f.do = func(ctx context.Context, _ string, _ types.UID) (runtime.SyncResult, error) {
					result := runtime.SyncResult{Unchanged: true}
					since := time.Since(resync)
					if since < 0 {
						return result, nil
					}
					mu.Lock()
					calls, underWay, last = calls+1, underWay+1, since
					most = max(most, underWay)
					first := calls == 1
					mu.Unlock()
					defer func() {
						mu.Lock()
						defer mu.Unlock()
						underWay--
					}()
					if first && blocks {
						return result, sleep.For(ctx, time.Hour)
					}
					return result, sleep.For(ctx, took)
				}
				w := runWorkers(t, f)
				for i := range pods {
					w.Update(podworkers.Update{Pod: newTestPod(fmt.Sprint(i))})
				}
				time.Sleep(time.Minute + 50*time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, pods, calls)
				if !blocks {
					assert.Equal(t, 1, most)
					assert.Equal(t, (pods-1)*took, last)
					return
				}
				assert.LessOrEqual(t, most, 66, "each pod that waits with the one that blocks, and one of the others")
				assert.Equal(t, 25*time.Millisecond+(pods-64-1)*took, last)
			})
		})
	}
}

// A call that is due at the end is not made, and none is left behind.
func TestWorkers_StopsWhileResyncing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSyncer{}
		ctx, cancel := context.WithCancel(t.Context())
		var calls atomic.Int32
		f.do = func(ctx context.Context, _ string, _ types.UID) (runtime.SyncResult, error) {
			if calls.Add(1) > 3 { // of the resync
				cancel()
				return runtime.SyncResult{}, untilCancelled(ctx)
			}
			return runtime.SyncResult{Unchanged: true}, nil
		}
		f.startTime = time.Now()
		w, err := podworkers.New(podworkers.Config{Syncer: f, Inspector: f, Jitter: 1e-12})
		assert.NoError(t, err)
		for _, uid := range []string{"a", "b", "c"} {
			w.Update(podworkers.Update{Pod: newTestPod(uid)})
		}
		assert.NoError(t, w.Run(ctx))
		assert.Len(t, f.take(), 4)
	})
}

// SL-5: a pod that only a request can give something to do is resynced rarely once two syncs have
// found that, until one finds that it is not settled any more.
func TestWorkers_ResyncsSettledPodsRarely(t *testing.T) {
	for name, tc := range map[string]struct {
		period, settledPeriod, want time.Duration
	}{
		"default":              {want: 5 * time.Minute},
		"of the resync period": {period: 10 * time.Second, want: 50 * time.Second},
		"configured":           {settledPeriod: 2 * time.Minute, want: 2 * time.Minute},
		"the same":             {period: time.Minute, settledPeriod: time.Minute, want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var settled atomic.Bool
				var mu sync.Mutex
				var starts []time.Duration
				begin := time.Now()
				requireStarts := func(want ...time.Duration) {
					synctest.Wait()
					mu.Lock()
					defer mu.Unlock()
					require.Equal(t, want, starts)
				}
				f := &fakeSyncer{do: func(_ context.Context, call string, _ types.UID) (runtime.SyncResult, error) {
					if call == "sync" {
						mu.Lock()
						starts = append(starts, time.Since(begin).Round(time.Second))
						mu.Unlock()
					}
					return runtime.SyncResult{Unchanged: true, Settled: settled.Load()}, nil
				}}
				settled.Store(true)
				w := runWorkers(t, f, func(c *podworkers.Config) {
					c.ResyncPeriod, c.SettledResyncPeriod = tc.period, tc.settledPeriod
				})
				w.Update(create(newTestPod("a")))
				period := cmp.Or(tc.period, time.Minute)
				time.Sleep(period + tc.want + time.Second)
				requireStarts(0, period, period+tc.want)

				settled.Store(false)
				w.Requeue("a", podworkers.RequeueEvent)
				requested := period + tc.want + time.Second
				requireStarts(0, period, period+tc.want, requested)
				time.Sleep(period + time.Second)
				requireStarts(0, period, period+tc.want, requested, requested+period)
			})
		})
	}
}
