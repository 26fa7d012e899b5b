package pleg

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// PL-6: an inspection that a caller waits for precedes queued ones, also if it was
// queued before. Another request does not make it urgent.
func TestGenerator_UrgentInspectionsFirst(t *testing.T) {
	rt := newFakeRuntime()
	var order []types.UID
	inBubble(t, rt, Config{MaxParallel: 1}, func(env *testEnv) {
		env.after(10 * time.Second)
		rt.with(func() {
			rt.inspectDelay = func(uid types.UID) time.Duration {
				order = append(order, uid)
				return 100 * time.Millisecond
			}
		})
		for _, uid := range []types.UID{"first", "a", "b", "c", "b"} {
			env.RequestInspection(uid)
		}
		var wg sync.WaitGroup
		for _, uid := range []types.UID{"c", "d"} {
			wg.Go(func() {
				_, err := env.GetNewerThan(env.t.Context(), uid, time.Now())
				assert.NoError(t, err)
			})
			env.after(time.Millisecond)
		}
		wg.Wait()
		env.after(10 * time.Second)
		rt.with(func() { order = slices.Clone(order) })
		assert.Equal(t, []types.UID{"first", "c", "d", "a", "b"}, order)
	})
}

// PL-7: a pod that the first relist does not contain is inspected if one of the
// callers needs a state newer than the start of that relist.
func TestGetNewerThan_FirstRelistTooOld(t *testing.T) {
	rt := newFakeRuntime()
	rt.listDelay = 300 * time.Millisecond
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(100 * time.Millisecond)
		var wg sync.WaitGroup
		for i, at := range []time.Time{{}, time.Now(), {}} {
			wg.Go(func() {
				_, err := env.GetNewerThan(env.t.Context(), "u", at)
				assert.NoError(t, err)
			})
			env.after(time.Duration(i+1) * time.Millisecond)
		}
		wg.Wait()
		assert.Equal(t, 1, rt.inspectionsOf("u"))
	})
}

// PL-1: a change that was deferred before an inspection began needs no other one.
func TestGenerator_InspectionCoversDeferredEvent(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.SyncStarted("u")
		env.after(10 * time.Second)
		rt.set(newTestPod("u", runtime.Running), true)
		env.after(time.Millisecond)
		_, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
		require.NoError(t, err)
		env.after(10 * time.Second)
		assert.Equal(t, 1, rt.inspectionsOf("u"), "covered")
		rt.set(newTestPod("u", runtime.Exited), true)
		env.after(10 * time.Second)
		assert.Equal(t, 2, rt.inspectionsOf("u"), "a newer event")
	})
}
