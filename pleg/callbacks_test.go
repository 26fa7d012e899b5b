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

// AG-9: a panic in the runtime, the cache or a hook is the error of that
// call.
func TestGenerator_RecoversPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newFakeRuntime()
		rt.set(newTestPod("u", runtime.Running), false)
		bad := &panickingRuntime{fakeRuntime: rt}
		g, err := New(Config{
			Runtime: bad, Cache: bad,
			Hooks: Hooks{Relisted: func(time.Duration, int, int, error) { panic("hook") }},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		time.Sleep(time.Minute)
		_, err = g.GetNewerThan(ctx, "u", time.Now())
		require.ErrorContains(t, err, "panic: runtime")
		bad.recovered.Store(true)
		time.Sleep(time.Minute)
		p, err := g.GetNewerThan(ctx, "u", time.Now())
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
		require.NoError(t, g.Healthy())
		rt.set(runtime.Pod{UID: "u"}, true)
		time.Sleep(10 * time.Minute)
		cancel()
		wg.Wait()
		assert.Empty(t, g.pods, "a panic in Delete does not keep the pod")
	})
}

// panickingRuntime is a runtime that panics until it has recovered, and a cache
// that always panics.
type panickingRuntime struct {
	*fakeRuntime
	recovered atomic.Bool
}

func (p *panickingRuntime) check() {
	if !p.recovered.Load() {
		panic("runtime")
	}
}

func (p *panickingRuntime) Pods(ctx context.Context) ([]runtime.Pod, error) {
	p.check()
	return p.fakeRuntime.Pods(ctx)
}

func (p *panickingRuntime) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	p.check()
	return p.fakeRuntime.Pod(ctx, uid)
}

func (p *panickingRuntime) Watch(ctx context.Context, onEvent func(types.UID)) error {
	p.check()
	return p.fakeRuntime.Watch(ctx, onEvent)
}

func (p *panickingRuntime) Set(types.UID, runtime.Pod, error, time.Time) { panic("cache") }
func (p *panickingRuntime) Delete(types.UID)                             { panic("cache") }

// The Cache is called without holding a lock, so it may call the Generator. A pod
// for which an inspection is requested during its deletion is inspected afterwards.
func TestGenerator_CacheMayCallGenerator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newFakeRuntime()
		s := &callingCache{cache: new(podcache.Cache)}
		g, err := New(Config{Runtime: rt, Cache: s})
		require.NoError(t, err)
		s.deleted = func(uid types.UID) {
			_ = g.InspectionErrors()
			rt.set(newTestPod(uid, runtime.Running), false)
			g.RequestInspection(uid)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		rt.set(newTestPod("u", runtime.Running), false)
		time.Sleep(time.Minute)
		rt.set(runtime.Pod{UID: "u"}, true)
		time.Sleep(time.Second)
		g.RequestRelist()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 1, s.deletions)
		p, ok := s.cache.Get("u")
		require.True(t, ok)
		assert.Len(t, p.Containers, 1, "the inspection after the deletion is kept")
		cancel()
		wg.Wait()
	})
}

// callingCache calls deleted before it deletes a pod.
type callingCache struct {
	cache     *podcache.Cache
	deleted   func(types.UID)
	deletions int
}

func (s *callingCache) Set(uid types.UID, p runtime.Pod, err error, at time.Time) {
	s.cache.Set(uid, p, err, at)
}

func (s *callingCache) Delete(uid types.UID) {
	s.deletions++
	s.deleted(uid)
	synctest.Wait()
	s.cache.Delete(uid)
}
