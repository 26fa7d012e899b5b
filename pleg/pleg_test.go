package pleg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// discardCache stores nothing.
type discardCache struct{}

func (discardCache) Set(types.UID, runtime.Pod, error, time.Time) {}
func (discardCache) Delete(types.UID)                             {}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := New(Config{RelistPeriod: -1, MaxParallel: -1})
	require.Error(t, err)
	for _, text := range []string{
		"pleg: Config.Runtime: required", "pleg: Config.Cache: required",
		"pleg: Config.RelistPeriod: must not be negative", "pleg: Config.MaxParallel: must not be negative",
	} {
		assert.ErrorContains(t, err, text)
	}
}

// PL-1: a runtime event, a request and a relist each cause an inspection.
func TestGenerator_InspectionCauses(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(10 * time.Second) // the stream is open
		rt.set(newTestPod("event", runtime.Running), true)
		env.after(0)
		assert.Equal(t, []EventType{ContainerStarted, ContainerStarted}, env.eventTypes())

		rt.set(newTestPod("requested", runtime.Running), false)
		env.RequestInspection("requested")
		env.after(0)
		assert.Equal(t, []EventType{ContainerStarted, ContainerStarted}, env.eventTypes())

		rt.set(newTestPod("get", runtime.Exited), false)
		p, err := env.GetNewerThan(env.t.Context(), "get", time.Now())
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
		assert.Equal(t, []EventType{ContainerDied, ContainerStarted}, env.eventTypes())

		rt.set(newTestPod("listed", runtime.Created), false)
		env.after(0)
		assert.Empty(t, env.eventTypes())
		env.RequestRelist()
		env.after(0)
		assert.Equal(t, []EventType{ContainerStarted, ContainerChanged}, env.eventTypes())
		assert.Len(t, env.cache.Pods(), 4)

		rt.set(runtime.Pod{UID: "listed"}, false)
		env.RequestRelist()
		env.after(0)
		assert.Equal(t, []EventType{ContainerDied, ContainerRemoved, ContainerDied, ContainerRemoved}, env.eventTypes())
		env.after(time.Second)
		env.RequestRelist()
		env.after(0)
		assert.Len(t, env.cache.Pods(), 3, "an absent pod is deleted")
		assert.Len(t, env.pods, 3)
	})
}

// PL-4, PL-5: the cost of an idle node.
func TestGenerator_IdleCost(t *testing.T) {
	for _, tt := range []struct {
		name                        string
		watchErr                    error
		minLists, maxLists, watches int
	}{
		{"with an event stream", nil, 12, 15, 1},
		{"without one", runtime.ErrUnsupported, 3590, 3601, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rt := newFakeRuntime()
			rt.watchErr = tt.watchErr
			for i := range 30 {
				rt.set(newTestPod(types.UID(fmt.Sprint(i)), runtime.Running, runtime.Exited), false)
			}
			inBubble(t, rt, Config{}, func(env *testEnv) {
				env.after(time.Hour - time.Second)
				lists, inspections, watches := env.rt.total()
				assert.GreaterOrEqual(t, lists, tt.minLists)
				assert.LessOrEqual(t, lists, tt.maxLists)
				assert.Equal(t, 30, inspections, "each pod once, at the start")
				assert.Equal(t, tt.watches, watches)
			})
		})
	}
}

// PL-5: only a changed pod is inspected.
func TestGenerator_RelistInspectsChangedPods(t *testing.T) {
	rt := newFakeRuntime()
	rt.watchErr = runtime.ErrUnsupported
	for i := range 100 {
		rt.set(newTestPod(types.UID(fmt.Sprint(i)), runtime.Running), false)
	}
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(5 * time.Second)
		_, before, _ := rt.total()
		rt.set(newTestPod("7", runtime.Exited), false)
		env.Drain()
		env.after(5 * time.Second)
		_, after, _ := rt.total()
		assert.Equal(t, before+1, after)
		assert.Equal(t, []EventType{ContainerDied}, env.eventTypes())
	})
}

// PL-7: a pod that no relist contained is absent without an inspection.
func TestGetNewerThan_AbsentPodNeedsNoInspection(t *testing.T) {
	rt := newFakeRuntime()
	rt.listDelay = 300 * time.Millisecond
	inBubble(t, rt, Config{}, func(env *testEnv) {
		// Both calls wait for the first relist.
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				p, err := env.GetNewerThan(env.t.Context(), "new", time.Time{})
				assert.NoError(t, err)
				assert.Equal(t, types.UID("new"), p.UID)
				assert.False(t, p.ObservedAt.IsZero())
			})
		}
		wg.Wait()
		env.after(time.Second)
		before := time.Now().Add(-time.Minute)
		_, err := env.GetNewerThan(env.t.Context(), "other", before)
		require.NoError(t, err)
		_, inspections, _ := rt.total()
		assert.Zero(t, inspections)

		_, err = env.GetNewerThan(env.t.Context(), "other", time.Now())
		require.NoError(t, err)
		assert.Equal(t, 1, rt.inspectionsOf("other"), "the relist is older")
	})
}

// PL-7: a pod that was listed and not inspected yet does not count as absent.
func TestGetNewerThan_WaitsForListedPod(t *testing.T) {
	rt := newFakeRuntime()
	rt.inspectDelay = func(types.UID) time.Duration { return 500 * time.Millisecond }
	rt.set(newTestPod("u", runtime.Running), false)
	inBubble(t, rt, Config{}, func(env *testEnv) {
		for _, uid := range []types.UID{"u", "later"} {
			env.after(10 * time.Second)
			rt.set(newTestPod(uid, runtime.Running), false)
			env.RequestRelist()
			env.after(100 * time.Millisecond)
			p, err := env.GetNewerThan(env.t.Context(), uid, time.Time{})
			require.NoError(t, err)
			assert.Len(t, p.Containers, 1)
		}
	})
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(100 * time.Millisecond)
		p, err := env.GetNewerThan(env.t.Context(), "u", time.Time{})
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
	})
}

// A first relist that hangs delays inspections only briefly.
func TestGenerator_FirstRelistHangs(t *testing.T) {
	rt := newFakeRuntime()
	rt.listDelay = hang
	rt.set(newTestPod("u", runtime.Running), false)
	inBubble(t, rt, Config{}, func(env *testEnv) {
		startTime := time.Now()
		p, err := env.GetNewerThan(env.t.Context(), "u", time.Time{})
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
		assert.LessOrEqual(t, time.Since(startTime), time.Second)
	})
}

// PL-7: how a state newer than a given time is found.
func TestGetNewerThan(t *testing.T) {
	rt := newFakeRuntime()
	rt.inspectDelay = func(types.UID) time.Duration { return time.Second }
	rt.set(newTestPod("u", runtime.Running), false)
	inBubble(t, rt, Config{SlowInspectionThreshold: time.Minute}, func(env *testEnv) {
		env.after(10 * time.Second)
		first := rt.inspectionsOf("u")
		step := func(name string, f func()) { t.Log(name); f() }

		step("the stored state is new enough", func() {
			_, err := env.GetNewerThan(env.t.Context(), "u", time.Now().Add(-time.Hour))
			require.NoError(t, err)
			assert.Equal(t, first, rt.inspectionsOf("u"))
		})
		step("concurrent callers share one inspection", func() {
			var wg sync.WaitGroup
			at := time.Now()
			time.Sleep(time.Millisecond)
			for range 20 {
				wg.Go(func() {
					p, err := env.GetNewerThan(env.t.Context(), "u", at)
					assert.NoError(t, err)
					assert.True(t, p.ObservedAt.After(at))
				})
			}
			wg.Wait()
			assert.Equal(t, first+1, rt.inspectionsOf("u"))
		})
		step("a caller that needs a newer state than the inspection under way gets the next one", func() {
			before := rt.inspectionsOf("u")
			env.RequestInspection("u")
			env.after(100 * time.Millisecond)
			rt.set(newTestPod("u", runtime.Exited), false)
			p, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
			require.NoError(t, err)
			assert.Equal(t, runtime.Exited, p.Containers[0].State)
			assert.Equal(t, before+2, rt.inspectionsOf("u"))
		})
		step("returns the cause of the context's end", func() {
			cause := errors.New("sync cancelled")
			ctx, cancel := context.WithCancelCause(env.t.Context())
			time.AfterFunc(100*time.Millisecond, func() { cancel(cause) })
			_, err := env.GetNewerThan(ctx, "u", time.Now())
			require.ErrorIs(t, err, cause)
		})
		step("waits for a time in the future", func() {
			at := time.Now().Add(time.Minute)
			p, err := env.GetNewerThan(env.t.Context(), "u", at)
			require.NoError(t, err)
			assert.False(t, p.ObservedAt.Before(at))
		})
	})
}

// PL-7: no caller waits for a Generator that has stopped.
func TestGenerator_Stopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newFakeRuntime()
		rt.inspectDelay = func(types.UID) time.Duration { return hang }
		g, err := New(Config{Runtime: rt, Cache: discardCache{}, MaxParallel: 1, SlowInspectionThreshold: hang, Timeout: hang})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		time.Sleep(time.Second)
		for _, uid := range []types.UID{"under way", "under way", "queued"} {
			wg.Go(func() {
				_, err := g.GetNewerThan(t.Context(), uid, time.Now())
				assert.ErrorIs(t, err, ErrStopped)
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		_, err = g.GetNewerThan(t.Context(), "u", time.Time{})
		require.ErrorIs(t, err, ErrStopped)
		g.RequestInspection("u")
		g.SyncStarted("u")
		g.SyncEnded("u", true)
		g.handleRuntimeEvent("u", time.Time{})
		require.Error(t, g.Run(t.Context()), "Run called twice")
	})
}

// stubbornRuntime is a runtime whose inspections last until release is closed.
type stubbornRuntime struct {
	*fakeRuntime
	release chan struct{}
}

func (rt stubbornRuntime) Pod(context.Context, types.UID) (runtime.Pod, error) {
	<-rt.release
	return runtime.Pod{}, nil
}

// PL-7: the caller of an inspection that has not begun does not wait for the end of one
// that ignores its context. Run does.
func TestGenerator_StoppedWhileInspectionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := stubbornRuntime{newFakeRuntime(), make(chan struct{})}
		g, err := New(Config{Runtime: rt, Cache: discardCache{}, MaxParallel: 1, SlowInspectionThreshold: hang})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- g.Run(ctx) }()
		time.Sleep(time.Second)
		g.RequestInspection("under way")
		queued := make(chan error, 1)
		go func() {
			_, err := g.GetNewerThan(t.Context(), "queued", time.Now())
			queued <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.Len(t, queued, 1)
		require.ErrorIs(t, <-queued, ErrStopped)
		assert.Empty(t, stopped, "an inspection is under way")
		close(rt.release)
		require.NoError(t, <-stopped)
	})
}

// New sets the documented defaults.
func TestConfig_Defaults(t *testing.T) {
	cfg := Config{Runtime: newFakeRuntime(), Cache: discardCache{}}
	require.NoError(t, cfg.complete())
	cfg.Runtime, cfg.Cache, cfg.Logger, cfg.Hooks = nil, nil, nil, Hooks{}
	assert.Equal(t, Config{
		RelistPeriod: time.Second, EventedRelistPeriod: 5 * time.Minute, MaxDeferral: time.Second, MaxParallel: 10, Timeout: 2 * time.Minute,
		SlowInspectionThreshold: time.Second, RelistThreshold: 3 * time.Minute, StreamOpenAfter: time.Second, StreamRetryPeriod: 10 * time.Minute,
	}, cfg)
}

// PL-6: a failed inspection is repeated until it succeeds. Meanwhile the cache has
// the error and the last good state.
func TestGenerator_RepeatsFailedInspection(t *testing.T) {
	rt := newFakeRuntime()
	errInspect := errors.New("inspection failed")
	rt.set(newTestPod("u", runtime.Running), false)
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(5 * time.Second)
		env.Drain()
		rt.with(func() { rt.inspectErr = func(types.UID) error { return errInspect } })
		_, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
		require.ErrorIs(t, err, errInspect)
		before := rt.inspectionsOf("u")
		env.after(time.Minute)
		assert.Greater(t, rt.inspectionsOf("u"), before+3)
		e, ok := env.cache.Entry("u")
		require.True(t, ok)
		require.ErrorIs(t, e.Err, errInspect)
		assert.Len(t, e.Pod.Containers, 1)
		require.Len(t, env.InspectionErrors(), 1)
		require.ErrorIs(t, env.InspectionErrors()[0], errInspect)
		require.NoError(t, env.Healthy())

		rt.with(func() { rt.inspectErr = nil })
		env.after(time.Minute)
		e, _ = env.cache.Entry("u")
		require.NoError(t, e.Err)
		assert.Equal(t, []EventType{PodSync}, env.eventTypes())
		assert.Empty(t, env.InspectionErrors())
		inspections := rt.inspectionsOf("u")
		env.after(4 * time.Minute)
		assert.Equal(t, inspections, rt.inspectionsOf("u"))
	})
}

func Example() {
	rt := newFakeRuntime()
	rt.set(newTestPod("uid-1", runtime.Running), false)
	var cache podcache.Cache
	g, err := New(Config{Runtime: rt, Cache: &cache})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- g.Run(ctx) }()
	<-g.Notify()
	for _, e := range g.Drain() {
		fmt.Println(e)
	}
	cancel()
	fmt.Println(<-done)
	// Output:
	// ContainerStarted pod=uid-1 sandbox=0 id=s-uid-1
	// ContainerStarted pod=uid-1 container=a/0 id=a-uid-1
	// <nil>
}
