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
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type nothing struct{}

func (nothing) Set(types.UID, runtime.Pod, error, time.Time) {}
func (nothing) Delete(types.UID)                             {}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := New(Config{RelistPeriod: -1, MaxParallel: -1})
	require.Error(t, err)
	for _, part := range []string{"Runtime", "Store", "Period", "Parallel"} {
		assert.ErrorContains(t, err, part)
	}
}

// PL-1: a runtime event, a request and a listing each cause an inspection.
func TestWhatCausesAnInspection(t *testing.T) {
	w := newWorld()
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(10 * time.Second) // the stream is open
		b.w.set(pod("hinted", runtime.Running), true)
		b.after(0)
		assert.Equal(t, []EventType{ContainerStarted, ContainerStarted}, b.kinds())

		b.w.set(pod("touched", runtime.Running), false)
		b.RequestInspection("touched")
		b.after(0)
		assert.Equal(t, []EventType{ContainerStarted, ContainerStarted}, b.kinds())

		b.w.set(pod("asked", runtime.Exited), false)
		p, err := b.GetNewerThan(b.t.Context(), "asked", time.Now())
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
		assert.Equal(t, []EventType{ContainerDied, ContainerStarted}, b.kinds())

		b.w.set(pod("listed", runtime.Created), false)
		b.after(0)
		assert.Empty(t, b.kinds())
		b.RequestRelist()
		b.after(0)
		assert.Equal(t, []EventType{ContainerStarted, ContainerChanged}, b.kinds())
		assert.Len(t, b.cache.Pods(), 4)

		b.w.set(runtime.Pod{UID: "listed"}, false)
		b.RequestRelist()
		b.after(0)
		assert.Equal(t, []EventType{ContainerDied, ContainerRemoved, ContainerDied, ContainerRemoved}, b.kinds())
		b.after(time.Second)
		b.RequestRelist()
		b.after(0)
		assert.Len(t, b.cache.Pods(), 3, "a pod that is gone is forgotten")
		assert.Len(t, b.pods, 3)
	})
}

// PL-4, PL-5: what an idle node costs.
func TestIdle(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		watch                 error
		fewest, most, watches int
	}{
		{"with an event stream", nil, 12, 15, 1},
		{"without one", runtime.ErrUnsupported, 3590, 3601, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.watchErr = tt.watch
			for i := range 30 {
				w.set(pod(types.UID(fmt.Sprint(i)), runtime.Running, runtime.Exited), false)
			}
			inBubble(t, w, Config{}, func(b *testEnv) {
				b.after(time.Hour - time.Second)
				lists, looks, watches := b.w.total()
				assert.GreaterOrEqual(t, lists, tt.fewest)
				assert.LessOrEqual(t, lists, tt.most)
				assert.Equal(t, 30, looks, "each pod once, at the start")
				assert.Equal(t, tt.watches, watches)
			})
		})
	}
}

// PL-5: a pod that changed is inspected, and no other.
func TestListingInspectsWhatChanged(t *testing.T) {
	w := newWorld()
	w.watchErr = runtime.ErrUnsupported
	for i := range 100 {
		w.set(pod(types.UID(fmt.Sprint(i)), runtime.Running), false)
	}
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(5 * time.Second)
		_, before, _ := w.total()
		w.set(pod("7", runtime.Exited), false)
		b.Drain()
		b.after(5 * time.Second)
		_, after, _ := w.total()
		assert.Equal(t, before+1, after)
		assert.Equal(t, []EventType{ContainerDied}, b.kinds())
	})
}

// A pod that no listing had is absent without a call, however it is asked for.
func TestGetNewerThan_AbsentPodNeedsNoInspection(t *testing.T) {
	w := newWorld()
	w.listTakes = 300 * time.Millisecond
	inBubble(t, w, Config{}, func(b *testEnv) {
		// The first listing is under way: it answers for both.
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				p, err := b.GetNewerThan(b.t.Context(), "new", time.Time{})
				assert.NoError(t, err)
				assert.Equal(t, types.UID("new"), p.UID)
				assert.False(t, p.ObservedAt.IsZero())
			})
		}
		wg.Wait()
		b.after(time.Second)
		before := time.Now().Add(-time.Minute)
		_, err := b.GetNewerThan(b.t.Context(), "other", before)
		require.NoError(t, err)
		_, looks, _ := w.total()
		assert.Zero(t, looks)

		_, err = b.GetNewerThan(b.t.Context(), "other", time.Now())
		require.NoError(t, err)
		assert.Equal(t, 1, w.looked("other"), "what happened since no listing tells")
	})
}

// A pod that was listed and has not been inspected yet is not taken to be absent.
func TestListedIsNotAbsent(t *testing.T) {
	w := newWorld()
	w.takes = func(types.UID) time.Duration { return 500 * time.Millisecond }
	w.set(pod("u", runtime.Running), false)
	inBubble(t, w, Config{}, func(b *testEnv) {
		for _, uid := range []types.UID{"u", "later"} {
			b.after(10 * time.Second)
			w.set(pod(uid, runtime.Running), false)
			b.RequestRelist()
			b.after(100 * time.Millisecond)
			p, err := b.GetNewerThan(b.t.Context(), uid, time.Time{})
			require.NoError(t, err)
			assert.Len(t, p.Containers, 1)
		}
	})
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(100 * time.Millisecond)
		p, err := b.GetNewerThan(b.t.Context(), "u", time.Time{})
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
	})
}

// A first listing that hangs holds nobody up for long.
func TestFirstListingHangs(t *testing.T) {
	w := newWorld()
	w.listTakes = hang
	w.set(pod("u", runtime.Running), false)
	inBubble(t, w, Config{}, func(b *testEnv) {
		began := time.Now()
		p, err := b.GetNewerThan(b.t.Context(), "u", time.Time{})
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
		assert.LessOrEqual(t, time.Since(began), time.Second)
	})
}

// PL-7
func TestNewerThan(t *testing.T) {
	w := newWorld()
	w.takes = func(types.UID) time.Duration { return time.Second }
	w.set(pod("u", runtime.Running), false)
	inBubble(t, w, Config{SlowInspectionThreshold: time.Minute}, func(b *testEnv) {
		b.after(10 * time.Second)
		first := w.looked("u")
		step := func(name string, f func()) { t.Log(name); f() }

		step("the view at hand is new enough", func() {
			_, err := b.GetNewerThan(b.t.Context(), "u", time.Now().Add(-time.Hour))
			require.NoError(t, err)
			assert.Equal(t, first, w.looked("u"))
		})
		step("all who ask in time share one inspection", func() {
			var wg sync.WaitGroup
			at := time.Now()
			time.Sleep(time.Millisecond)
			for range 20 {
				wg.Go(func() {
					p, err := b.GetNewerThan(b.t.Context(), "u", at)
					assert.NoError(t, err)
					assert.True(t, p.ObservedAt.After(at))
				})
			}
			wg.Wait()
			assert.Equal(t, first+1, w.looked("u"))
		})
		step("one that asks for newer than an inspection under way gets the next", func() {
			before := w.looked("u")
			b.RequestInspection("u")
			b.after(100 * time.Millisecond)
			w.set(pod("u", runtime.Exited), false)
			p, err := b.GetNewerThan(b.t.Context(), "u", time.Now())
			require.NoError(t, err)
			assert.Equal(t, runtime.Exited, p.Containers[0].State)
			assert.Equal(t, before+2, w.looked("u"))
		})
		step("the context's own cause ends a wait", func() {
			why := errors.New("turn cancelled")
			ctx, cancel := context.WithCancelCause(b.t.Context())
			time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
			_, err := b.GetNewerThan(ctx, "u", time.Now())
			require.ErrorIs(t, err, why)
		})
		step("a time to come is waited for", func() {
			at := time.Now().Add(time.Minute)
			p, err := b.GetNewerThan(b.t.Context(), "u", at)
			require.NoError(t, err)
			assert.False(t, p.ObservedAt.Before(at))
		})
	})
}

// PL-7: nobody waits for a Generator that has stopped.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.takes = func(types.UID) time.Duration { return hang }
		g, err := New(Config{Runtime: w, Cache: nothing{}, MaxParallel: 1, SlowInspectionThreshold: hang, Timeout: hang})
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
		g.MarkIdle("u")
		g.handleRuntimeEvent("u", time.Time{})
		require.Error(t, g.Run(t.Context()), "a second Run")
	})
}

// PL-6: a failed inspection is repeated until it succeeds; meanwhile the store
// has the error beside the last good view.
func TestFailedInspectionIsRepeated(t *testing.T) {
	w := newWorld()
	boom := errors.New("boom")
	w.set(pod("u", runtime.Running), false)
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(5 * time.Second)
		b.Drain()
		w.with(func() { w.fails = func(types.UID) error { return boom } })
		_, err := b.GetNewerThan(b.t.Context(), "u", time.Now())
		require.ErrorIs(t, err, boom)
		before := w.looked("u")
		b.after(time.Minute)
		assert.Greater(t, w.looked("u"), before+3)
		e, ok := b.cache.Entry("u")
		require.True(t, ok)
		require.ErrorIs(t, e.Err, boom)
		assert.Len(t, e.Pod.Containers, 1)
		require.Len(t, b.InspectionErrors(), 1)
		require.ErrorIs(t, b.InspectionErrors()[0], boom)
		require.NoError(t, b.Healthy())

		w.with(func() { w.fails = nil })
		b.after(time.Minute)
		e, _ = b.cache.Entry("u")
		require.NoError(t, e.Err)
		assert.Equal(t, []EventType{PodSync}, b.kinds())
		assert.Empty(t, b.InspectionErrors())
		settled := w.looked("u")
		b.after(4 * time.Minute)
		assert.Equal(t, settled, w.looked("u"))
	})
}

func Example() {
	w := newWorld()
	w.set(pod("uid-1", runtime.Running), false)
	var cache podcache.Cache
	g, err := New(Config{Runtime: w, Cache: &cache})
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
