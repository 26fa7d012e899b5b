package pleg

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Pods that come and go between two relists leave nothing behind.
func TestGenerator_DeletesAbsentPods(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(5 * time.Second)
		lists, _, _ := rt.total()
		for i := range 100 {
			uid := types.UID(fmt.Sprint("u", i))
			rt.set(newTestPod(uid, runtime.Running), true)
			env.after(time.Second)
			rt.set(runtime.Pod{UID: uid}, true)
			env.after(100 * time.Millisecond)
			assert.Contains(t, env.eventTypes(), ContainerRemoved)
			assert.LessOrEqual(t, len(env.pods), 11)
			assert.LessOrEqual(t, len(env.cache.Pods()), 11)
			assert.Equal(t, 2, rt.inspectionsOf(uid))
		}
		now, _, _ := rt.total()
		assert.Equal(t, lists, now, "no relist has deleted them")
		assert.LessOrEqual(t, len(env.absent), 11)

		rt.set(newTestPod("u0", runtime.Running), true)
		env.after(time.Second)
		assert.Equal(t, []EventType{ContainerStarted, ContainerStarted}, env.eventTypes(), "a pod that comes back")
		assert.True(t, env.IsRunning("u0"))
	})
}

// withAbsentPod returns a Generator with a pod that may be deleted at the given time.
func withAbsentPod(t *testing.T, now time.Time) (*Generator, *podRecord) {
	t.Helper()
	g, err := New(Config{Runtime: newFakeRuntime(), Cache: discardCache{}})
	require.NoError(t, err)
	r := g.record("u")
	r.observedAt = now.Add(-absentFor)
	g.absent = []absentPod{{r, r.observedAt}}
	return g, r
}

// What is still in use is not deleted.
func TestGenerator_KeepsAbsentPods(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name   string
		change func(*Generator, *podRecord)
		want   bool
	}{
		{"absent for long", func(*Generator, *podRecord) {}, false},
		{"absent for a moment", func(g *Generator, _ *podRecord) { g.absent[0].at = now }, true},
		{"inspected since", func(_ *Generator, r *podRecord) { r.observedAt = now }, true},
		{"exists again", func(_ *Generator, r *podRecord) { r.observed = newTestPod("u", runtime.Running) }, true},
		{"to be inspected", func(_ *Generator, r *podRecord) { r.next = &inspection{r: r} }, true},
		{"being synced", func(g *Generator, _ *podRecord) { g.SyncStarted("u") }, true},
		{"a relist contradicts the inspection", func(_ *Generator, r *podRecord) { r.flapping.fingerprint = 7 }, true},
		{"may be in a list under way", func(g *Generator, _ *podRecord) { g.health.listingSince = now }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, r := withAbsentPod(t, now)
			tt.change(g, r)
			g.delete(g.takeAbsent(now))
			assert.Equal(t, tt.want, g.pods["u"] != nil)
		})
	}
}

// A pod that is asked for while it is deleted is kept, and inspected.
func TestGenerator_InspectsPodAskedForWhileDeleted(t *testing.T) {
	now := time.Now()
	g, r := withAbsentPod(t, now)
	absent := g.takeAbsent(now)
	in := g.requestInspection(r, now, true)
	assert.Nil(t, g.queue.pop(), "the entry of the cache is not deleted yet")
	g.delete(absent)
	assert.Same(t, r, g.pods["u"])
	assert.Same(t, in, g.queue.pop())
}
