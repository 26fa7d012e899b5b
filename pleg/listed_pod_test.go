package pleg

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

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
		"a worker syncs the pod":               {func(g *Generator) { g.SyncStarted("u") }, 0},
		"an inspection was requested":          {func(g *Generator) { g.RequestInspection("u") }, 0},
		"a runtime event was received":         {func(g *Generator) { g.handleRuntimeEvent("u", time.Time{}) }, 0},
		"something happens to another pod":     {func(g *Generator) { g.RequestInspection("v") }, 1},
		"a worker wants to know any state":     {func(g *Generator) { _, _, _ = g.requestNewerThan("u", time.Time{}) }, 0},
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
	} {
		t.Run(name, func(t *testing.T) {
			in := &inspection{r: &podRecord{}, listed: &listedPod{at: now}}
			tt.change(in)
			assert.Equal(t, tt.want, in.canUseList())
		})
	}
}
