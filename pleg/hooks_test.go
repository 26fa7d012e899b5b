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

	"github.com/sublet-dev/agent/runtime"
)

// hookCalls records the calls of hooks.
type hookCalls struct {
	mu    sync.Mutex
	calls []string
}

func (c *hookCalls) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, fmt.Sprintf(format, args...))
}

func (c *hookCalls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

func (c *hookCalls) hooks() Hooks {
	return Hooks{
		Relisted: func(duration time.Duration, pods, changed int, err error) {
			c.add("relisted in %v: %d pods, %d changed, %v", duration, pods, changed, err)
		},
		Inspected: func(uid types.UID, waited, duration time.Duration, err error) {
			c.add("inspected %s after %v in %v: %v", uid, waited, duration, err)
		},
		StreamChanged:        func(open bool, err error) { c.add("stream open %t: %v", open, err) },
		RuntimeEventReceived: func(uid types.UID) { c.add("event of %s", uid) },
		RuntimeEventsMissed:  func(pods int) { c.add("missed %d", pods) },
	}
}

func TestHooks_RelistAndInspections(t *testing.T) {
	rt := newFakeRuntime()
	rt.watchErr = runtime.ErrUnsupported
	rt.listDelay = 100 * time.Millisecond
	rt.inspectDelay = func(types.UID) time.Duration { return 300 * time.Millisecond }
	rt.set(newTestPod("u", runtime.Running), false)
	var calls hookCalls
	inBubble(t, rt, Config{Hooks: calls.hooks(), MaxParallel: 1, RelistPeriod: time.Minute}, func(env *testEnv) {
		env.after(time.Second)
		assert.Equal(t, []string{"relisted in 100ms: 1 pods, 1 changed, <nil>", "inspected u after 0s in 300ms: <nil>"}, calls.take())
		env.RequestInspection("u")
		env.RequestInspection("v")
		env.after(time.Second)
		assert.Equal(t, []string{"inspected u after 0s in 300ms: <nil>", "inspected v after 300ms in 300ms: <nil>"}, calls.take())
		rt.with(func() {
			rt.listErr = errors.New("no socket")
			rt.inspectErr = func(types.UID) error { return rt.listErr }
		})
		env.RequestRelist()
		env.RequestInspection("u")
		env.after(time.Second)
		assert.Equal(t, []string{"relisted in 100ms: 1 pods, 0 changed, list pods: no socket", "inspected u after 0s in 300ms: no socket"}, calls.take())
	})
}

func TestHooks_EventStream(t *testing.T) {
	rt := newFakeRuntime()
	var calls hookCalls
	hooks := calls.hooks()
	hooks.Relisted, hooks.Inspected = nil, nil
	inBubble(t, rt, Config{Hooks: hooks}, func(env *testEnv) {
		env.after(999 * time.Millisecond)
		assert.Empty(t, calls.take(), "it may fail yet")
		env.after(10 * time.Second)
		assert.Equal(t, []string{"stream open true: <nil>"}, calls.take())
		rt.set(newTestPod("u", runtime.Running), true)
		env.after(time.Second)
		assert.Equal(t, []string{"event of u"}, calls.take())
		rt.set(newTestPod("v", runtime.Running), false)
		rt.set(newTestPod("w", runtime.Running), false)
		env.RequestRelist()
		env.after(time.Millisecond)
		assert.Equal(t, []string{"missed 2"}, calls.take())
		rt.with(func() { rt.emit("v") })
		env.after(time.Second)
		assert.Equal(t, []string{"event of v"}, calls.take(), "late")
		rt.with(func() { rt.inspectDelay = func(types.UID) time.Duration { return 500 * time.Millisecond } })
		rt.set(newTestPod("u", runtime.Exited), true)
		env.after(100 * time.Millisecond)
		env.RequestRelist()
		env.after(time.Second)
		assert.Equal(t, []string{"event of u"}, calls.take(), "its inspection is under way")
		rt.with(func() {
			for ch := range rt.streams {
				close(ch)
				delete(rt.streams, ch)
			}
		})
		env.after(0)
		assert.Equal(t, []string{"stream open false: stream broke"}, calls.take())
		rt.set(newTestPod("x", runtime.Running), false)
		env.after(10 * time.Second)
		assert.Equal(t, []string{"stream open true: <nil>"}, calls.take(), "a change while the stream was closed is not missed")
	})
}

// The context of a query of the runtime ends with it.
func TestGenerator_ReleasesContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &contextRuntime{fakeRuntime: newFakeRuntime()}
		g, err := New(Config{Runtime: rt, Cache: discardCache{}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		_, err = g.GetNewerThan(t.Context(), "u", time.Now())
		require.NoError(t, err)
		synctest.Wait()
		require.ErrorIs(t, rt.ctx.Err(), context.Canceled)
		require.ErrorIs(t, rt.listCtx.Err(), context.Canceled)
		cancel()
		require.NoError(t, <-done)
	})
}

// contextRuntime keeps the contexts of the last inspection and of the last relist.
type contextRuntime struct {
	*fakeRuntime
	ctx, listCtx context.Context
}

func (rt *contextRuntime) Pods(ctx context.Context) ([]runtime.Pod, error) {
	rt.listCtx = ctx
	return rt.fakeRuntime.Pods(ctx)
}

func (rt *contextRuntime) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	rt.ctx = ctx
	return rt.fakeRuntime.Pod(ctx, uid)
}

// PL-6: a pod that was slow once is inspected with the others when it is quick again,
// and a timer that finds its inspection ended has no effect.
func TestInspection_SlowPodRecovers(t *testing.T) {
	rt := newFakeRuntime()
	rt.inspectDelay = func(types.UID) time.Duration { return 5 * time.Second }
	inBubble(t, rt, Config{MaxParallel: 1}, func(env *testEnv) {
		env.after(10 * time.Second)
		inspect := func() *inspection {
			_, in, err := env.requestNewerThan("u", time.Now())
			require.NoError(t, err)
			<-in.done
			env.after(time.Millisecond)
			return in
		}
		isSlow := func() bool {
			env.mu.Lock()
			defer env.mu.Unlock()
			return env.pods["u"].slow
		}
		inspect()
		assert.True(t, isSlow())
		rt.with(func() { rt.inspectDelay = nil })
		in := inspect()
		assert.False(t, isSlow())
		env.markSlow(in)
		assert.False(t, isSlow())
		assert.Equal(t, 1, env.queue.free)
		assert.Equal(t, 1, env.slowQueue.free)
	})
}

// PL-6: the slot of a slow inspection is used at once, also while a relist hangs.
func TestInspection_SlowPodGivesSlotBack(t *testing.T) {
	rt := newFakeRuntime()
	var calls hookCalls
	hooks := Hooks{Inspected: calls.hooks().Inspected}
	inBubble(t, rt, Config{MaxParallel: 1, Hooks: hooks}, func(env *testEnv) {
		env.after(10 * time.Second)
		rt.with(func() {
			rt.listDelay = time.Minute
			rt.inspectDelay = func(uid types.UID) time.Duration { return map[types.UID]time.Duration{"slow": time.Minute}[uid] }
		})
		env.RequestRelist()
		env.RequestInspection("slow")
		env.RequestInspection("u")
		env.after(30 * time.Second)
		assert.Equal(t, []string{"inspected u after 1s in 0s: <nil>"}, calls.take())
	})
}
