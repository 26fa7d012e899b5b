package pleg

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

// AG-9: a panic in the runtime, in the store, in a hook or in who is asked whether a
// pod is busy is the error of that call.
func TestGenerator_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set(pod("u", runtime.Running), false)
		bad := &panicky{fakeRuntime: w}
		g, err := New(Config{
			Runtime: bad, Cache: bad, IsWorking: func(types.UID) bool { panic("busy") },
			Hooks: Hooks{Relisted: func(time.Duration, int, int, error) { panic("hook") }},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		time.Sleep(time.Minute)
		_, err = g.GetNewerThan(ctx, "u", time.Now())
		require.ErrorContains(t, err, "panic: runtime")
		bad.well.Store(true)
		time.Sleep(time.Minute)
		p, err := g.GetNewerThan(ctx, "u", time.Now())
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
		require.NoError(t, g.Healthy())
		w.set(runtime.Pod{UID: "u"}, true)
		time.Sleep(10 * time.Minute)
		cancel()
		wg.Wait()
		assert.Empty(t, g.pods, "what the store made of it is its own affair")
	})
}

// panicky is a runtime that panics until it is well, and a store that always does.
type panicky struct {
	*fakeRuntime
	well atomic.Bool
}

func (p *panicky) check() {
	if !p.well.Load() {
		panic("runtime")
	}
}

func (p *panicky) Pods(ctx context.Context) ([]runtime.Pod, error) {
	p.check()
	return p.fakeRuntime.Pods(ctx)
}

func (p *panicky) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	p.check()
	return p.fakeRuntime.Pod(ctx, uid)
}

func (p *panicky) Watch(ctx context.Context, hint func(types.UID)) error {
	p.check()
	return p.fakeRuntime.Watch(ctx, hint)
}

func (p *panicky) Set(types.UID, runtime.Pod, error, time.Time) { panic("store") }
func (p *panicky) Delete(types.UID)                             { panic("store") }

// A Store is called under no lock: it may ask the Generator. A pod that is asked for
// while it is deleted is inspected after that.
func TestStoreMayCallTheGenerator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := &asking{cache: new(podcache.Cache)}
		g, err := New(Config{Runtime: w, Cache: s})
		require.NoError(t, err)
		s.deleted = func(uid types.UID) {
			_ = g.InspectionErrors()
			w.set(pod(uid, runtime.Running), false)
			g.RequestInspection(uid)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		w.set(pod("u", runtime.Running), false)
		time.Sleep(time.Minute)
		w.set(runtime.Pod{UID: "u"}, true)
		time.Sleep(time.Second)
		g.RequestRelist()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 1, s.deletions)
		p, ok := s.cache.Get("u")
		require.True(t, ok)
		assert.Len(t, p.Containers, 1, "what was inspected after the deletion is kept")
		cancel()
		wg.Wait()
	})
}

type asking struct {
	cache     *podcache.Cache
	deleted   func(types.UID)
	deletions int
}

func (s *asking) Set(uid types.UID, p runtime.Pod, err error, at time.Time) {
	s.cache.Set(uid, p, err, at)
}

func (s *asking) Delete(uid types.UID) {
	s.deletions++
	s.deleted(uid)
	synctest.Wait()
	s.cache.Delete(uid)
}
