package pleg

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// PL-8: a Generator that was stopped is not unhealthy.
func TestHealthy_Stopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newFakeRuntime()
		rt.listErr = errors.New("connection refused")
		g, err := New(Config{Runtime: rt, Cache: discardCache{}})
		require.NoError(t, err)
		require.NoError(t, g.Healthy(), "not started")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.NoError(t, g.Run(ctx))
		time.Sleep(time.Hour)
		require.NoError(t, g.Healthy())
	})
}

// PL-8: the errors are sorted by UID.
func TestInspectionErrors_Sorted(t *testing.T) {
	rt := newFakeRuntime()
	rt.inspectErr = func(types.UID) error { return errors.New("inspection failed") }
	var want []types.UID
	for r := 'a'; r <= 'z'; r++ { // small maps have few orders
		want = append(want, types.UID(r))
		rt.set(newTestPod(types.UID(r), runtime.Running), false)
	}
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(time.Second)
		var got []types.UID
		for _, e := range env.InspectionErrors() {
			got = append(got, e.UID)
		}
		assert.Equal(t, want, got)
	})
}

// A pod that no relist has found is not uninspected.
func TestUninspected_UnlistedPod(t *testing.T) {
	rt := newFakeRuntime()
	rt.listDelay = 500 * time.Millisecond
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.RequestInspection("u")
		env.after(100 * time.Millisecond)
		assert.Empty(t, env.Uninspected())
		assert.False(t, env.IsRunning("u"))
	})
}

// PL-6: an absent pod whose inspection fails is not forgotten.
func TestGenerator_KeepsAbsentPodThatFails(t *testing.T) {
	rt := newFakeRuntime()
	rt.inspectErr = func(types.UID) error { return errors.New("inspection failed") }
	inBubble(t, rt, Config{RelistPeriod: time.Hour, EventedRelistPeriod: time.Hour}, func(env *testEnv) {
		env.after(10 * time.Second)
		_, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
		require.Error(t, err)
		env.after(time.Second)
		env.RequestRelist()
		env.after(time.Second)
		require.Len(t, env.InspectionErrors(), 1)
		rt.with(func() { rt.inspectErr = nil })
		env.after(2 * time.Hour)
		assert.Empty(t, env.InspectionErrors())
		assert.Equal(t, []EventType{PodSync}, env.eventTypes())
	})
}

// PL-1: a relist does not forget the deferred event of a pod that it does not
// contain.
func TestGenerator_KeepsDeferredEventOfAbsentPod(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{MaxDeferral: time.Hour}, func(env *testEnv) {
		env.SyncStarted("u")
		env.after(10 * time.Second)
		rt.with(func() { rt.emit("u") })
		env.after(time.Second)
		env.RequestRelist()
		env.after(time.Second)
		assert.Zero(t, rt.inspectionsOf("u"))
		env.SyncEnded("u", false)
		env.after(0)
		assert.Equal(t, 1, rt.inspectionsOf("u"))
	})
}
