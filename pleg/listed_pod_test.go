package pleg

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

// listedRuntime completes pods of its lists.
type listedRuntime struct {
	*fakeRuntime
	completed map[types.UID]int
}

// InspectListedPod implements runtime.ListedPodInspector.
func (rt listedRuntime) InspectListedPod(_ context.Context, listed runtime.Pod) (runtime.Pod, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.completed[listed.UID]++
	listed.Name = "completed"
	return listed, nil
}

// Unwrap returns the runtime of the bubble.
func (rt listedRuntime) Unwrap() any { return rt.fakeRuntime }

// PL-1: the first inspection of a pod that a relist finds goes on from the list, and its
// result is as old as the list. What happens meanwhile needs an inspection of its own.
func TestGenerator_InspectsListedPods(t *testing.T) {
	for name, tt := range map[string]struct {
		before    func(g *Generator) // the first relist
		completed int
	}{
		"nothing happens":                      {func(*Generator) {}, 1},
		"an inspection was requested":          {func(g *Generator) { g.RequestInspection("u") }, 0},
		"a runtime event was received":         {func(g *Generator) { g.handleRuntimeEvent("u", time.Time{}) }, 0},
		"something happens to another pod":     {func(g *Generator) { g.RequestInspection("v") }, 1},
		"a worker wants to know any state":     {func(g *Generator) { _, _, _ = g.requestNewerThan("u", time.Time{}) }, 1},
		"a worker syncs another pod meanwhile": {func(g *Generator) { g.SyncStarted("v") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := newFakeRuntime()
				fake.set(newTestPod("u", runtime.Running), false)
				rt := listedRuntime{fake, map[types.UID]int{}}
				g, err := New(Config{Runtime: rt, Cache: discardCache{}})
				require.NoError(t, err)
				tt.before(g)
				listed := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- g.Run(ctx) }()
				time.Sleep(5 * time.Second)
				synctest.Wait()
				assert.Equal(t, tt.completed, rt.completed["u"])
				inspects := fake.inspected["u"]
				assert.Equal(t, tt.completed == 0, inspects > 0)
				p, err := g.GetNewerThan(t.Context(), "u", time.Time{})
				require.NoError(t, err)
				assert.Equal(t, tt.completed == 1, p.Name == "completed")
				if tt.completed == 1 {
					assert.Equal(t, listed, p.ObservedAt)
				}
				_, err = g.GetNewerThan(t.Context(), "u", time.Now())
				require.NoError(t, err)
				assert.Equal(t, tt.completed, rt.completed["u"], "the list is used once")
				assert.Equal(t, inspects+1, fake.inspected["u"])
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// PL-5: where only relists tell what has changed, the inspection goes on from the list, too, unless that lacks something.
func TestGenerator_InspectsChangedPodsFromTheList(t *testing.T) {
	// Relists come at full seconds, and the change at 1.5 s: the relist at 2 s sees it, and its deferral ends at 2.7 s.
	const soon, relisted, deferred = 1500 * time.Millisecond, 600 * time.Millisecond, 3 * time.Second
	exited := newTestPod("u", runtime.Exited, runtime.Running)
	for name, tt := range map[string]struct {
		change               func(g *Generator, rt *fakeRuntime)
		after                time.Duration
		completed, inspected int
	}{
		"nothing":           {func(*Generator, *fakeRuntime) {}, soon, 0, 0},
		"a container exits": {func(_ *Generator, rt *fakeRuntime) { rt.set(exited, false) }, soon, 1, 0},
		"a container is new": {func(_ *Generator, rt *fakeRuntime) {
			rt.set(newTestPod("u", runtime.Running, runtime.Running, runtime.Running), false)
		}, soon, 1, 0},
		"a container is missing": {func(_ *Generator, rt *fakeRuntime) { rt.set(newTestPod("u", runtime.Running), false) }, soon, 0, 1},
		"the sandbox is missing": {func(_ *Generator, rt *fakeRuntime) {
			rt.set(runtime.Pod{UID: "u", Containers: exited.Containers}, false)
		}, soon, 0, 1},
		"the pod is missing": {func(_ *Generator, rt *fakeRuntime) { rt.set(runtime.Pod{UID: "u"}, false) }, soon, 0, 1},
		"during a sync": {func(g *Generator, rt *fakeRuntime) {
			g.SyncStarted("u")
			rt.set(exited, false)
		}, deferred, 1, 0},
		"during a sync that ends unchanged": {func(g *Generator, rt *fakeRuntime) {
			g.SyncStarted("u")
			rt.set(exited, false)
			time.Sleep(relisted)
			g.SyncEnded("u", false)
		}, 0, 1, 0},
		"during a sync that ends changed": {func(g *Generator, rt *fakeRuntime) {
			g.SyncStarted("u")
			rt.set(exited, false)
			time.Sleep(relisted)
			g.SyncEnded("u", true)
		}, soon, 0, 1},
		"with a runtime event during a sync": {func(g *Generator, rt *fakeRuntime) {
			g.SyncStarted("u")
			rt.set(exited, false)
			time.Sleep(relisted)
			g.handleRuntimeEvent("u", time.Time{})
		}, deferred, 0, 1},
		"inspected since, during a sync": {func(g *Generator, rt *fakeRuntime) {
			g.SyncStarted("u")
			rt.set(exited, false)
			time.Sleep(relisted)
			_, _ = g.GetNewerThan(context.Background(), "u", time.Now())
		}, deferred, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake := newFakeRuntime()
				fake.watchErr = runtime.ErrUnsupported
				fake.set(newTestPod("u", runtime.Running, runtime.Running), false)
				rt, cache := listedRuntime{fake, map[types.UID]int{}}, new(podcache.Cache)
				g, err := New(Config{Runtime: rt, Cache: cache, MaxDeferral: 700 * time.Millisecond})
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- g.Run(ctx) }()
				time.Sleep(soon)
				synctest.Wait()
				require.Equal(t, 1, rt.completed["u"])

				tt.change(g, fake)
				time.Sleep(tt.after)
				synctest.Wait()
				assert.Equal(t, tt.completed, rt.completed["u"]-1)
				assert.Equal(t, tt.inspected, fake.inspected["u"])
				p, _ := cache.Get("u")
				assert.Len(t, p.Containers, len(fake.pods["u"].Containers))
				for i, c := range p.Containers {
					assert.Equal(t, fake.pods["u"].Containers[i].State, c.State)
				}
				assert.Nil(t, g.record("u").listed, "it is of no more use")
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// The list is too old for a change that happened between it and the inspection.
func TestInspection_CanUseList(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		change func(*inspection)
		want   bool
	}{
		"nothing happened":                         {func(*inspection) {}, true},
		"there is no list":                         {func(in *inspection) { in.listed = nil }, false},
		"a caller waits for an older state":        {func(in *inspection) { in.newerThan = now.Add(-1) }, true},
		"a caller waits for a state newer than it": {func(in *inspection) { in.newerThan = now }, false},
		"an inspection was requested":              {func(in *inspection) { in.requestedAt = now }, false},
		"a runtime event was received":             {func(in *inspection) { in.r.eventReceived = true }, false},
		"a change is deferred":                     {func(in *inspection) { in.r.deferredSeq = 1 }, false},
		"an older inspection began":                {func(in *inspection) { in.r.lastStartTime = now.Add(-1) }, true},
		"an inspection began at the same time":     {func(in *inspection) { in.r.lastStartTime = now }, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := &inspection{r: &podRecord{}, listed: &listedPod{at: now}}
			tt.change(in)
			assert.Equal(t, tt.want, in.canUseList())
		})
	}
}
