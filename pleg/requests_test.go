package pleg

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// PL-7: which state or inspection answers a caller, when times are equal.
func TestGenerator_RequestNewerThan(t *testing.T) {
	now := time.Now()
	earlier := now.Add(-time.Second)
	other := &inspection{}
	for _, tt := range []struct {
		name          string
		r             podRecord
		stored, joins bool // the stored state, or the inspection under way; else the next inspection
	}{
		{"a newer state", podRecord{observedAt: now.Add(1)}, true, false},
		{"an older state", podRecord{observedAt: earlier, requestedAt: now}, false, false},
		{"a state of that time", podRecord{observedAt: now}, false, false},
		{"a state of that time for an earlier request", podRecord{observedAt: now, requestedAt: earlier}, false, false},
		{"a state of that time that was requested then", podRecord{observedAt: now, requestedAt: now}, true, false},
		{"the same, and it was requested again", podRecord{observedAt: now, requestedAt: now, next: other}, false, false},
		{"the same, and an inspection has failed since", podRecord{observedAt: now, requestedAt: now, failures: 1}, false, false},
		{"a newer inspection", podRecord{current: &inspection{startTime: now.Add(1)}}, false, true},
		{"an older inspection", podRecord{current: &inspection{startTime: earlier, requestedAt: now}}, false, false},
		{"an inspection of that time", podRecord{current: &inspection{startTime: now}}, false, false},
		{"an inspection of that time for an earlier request", podRecord{current: &inspection{startTime: now, requestedAt: earlier}}, false, false},
		{"an inspection of that time that was requested then", podRecord{current: &inspection{startTime: now, requestedAt: now}}, false, true},
		{"the same, and another was requested", podRecord{current: &inspection{startTime: now, requestedAt: now}, next: other}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, err := New(Config{Runtime: newFakeRuntime(), Cache: discardCache{}})
			require.NoError(t, err)
			r := tt.r
			r.uid, r.observed = "u", newTestPod("u")
			if r.next != nil {
				r.next = &inspection{r: &r}
			}
			g.pods["u"] = &r
			p, in, err := g.requestNewerThan("u", now)
			require.NoError(t, err)
			switch {
			case tt.stored:
				assert.Nil(t, in)
				assert.Equal(t, r.observed, p)
			case tt.joins:
				assert.Same(t, r.current, in)
			default:
				require.NotNil(t, in)
				assert.Same(t, r.next, in)
				assert.Equal(t, now, in.newerThan)
			}
		})
	}
}

// PL-7: a caller that waits for a time in the future returns when its context ends.
func TestGetNewerThan_CancelledBeforeItsTime(t *testing.T) {
	inBubble(t, newFakeRuntime(), Config{}, func(env *testEnv) {
		cause := errors.New("sync cancelled")
		ctx, cancel := context.WithCancelCause(env.t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		startTime := time.Now()
		_, err := env.GetNewerThan(ctx, "u", startTime.Add(time.Hour))
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "wait for newer state of pod u")
		assert.Equal(t, time.Second, time.Since(startTime))
	})
}

// PL-1: the end of a sync that may have changed the pod causes an inspection, and
// afterwards runtime events do at once.
func TestGenerator_SyncEnded(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(10 * time.Second)
		env.SyncStarted("u")
		env.SyncEnded("u", false)
		env.after(0)
		assert.Zero(t, rt.inspectionsOf("u"))
		env.SyncStarted("u")
		env.SyncEnded("u", true)
		env.after(0)
		assert.Equal(t, 1, rt.inspectionsOf("u"))
		rt.set(newTestPod("u", runtime.Running), true)
		env.after(0)
		assert.Equal(t, 2, rt.inspectionsOf("u"))
	})
}

// PL-1: the deferral of one sync does not shorten that of the next.
func TestGenerator_DefersInEachSync(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(10 * time.Second)
		env.SyncStarted("u")
		rt.set(newTestPod("u", runtime.Created), true)
		env.after(500 * time.Millisecond)
		env.SyncEnded("u", false)
		env.after(0)
		assert.Equal(t, 1, rt.inspectionsOf("u"))
		env.SyncStarted("u")
		env.after(100 * time.Millisecond)
		rt.set(newTestPod("u", runtime.Running), true)
		env.after(999 * time.Millisecond)
		assert.Equal(t, 1, rt.inspectionsOf("u"))
		env.after(time.Millisecond)
		assert.Equal(t, 2, rt.inspectionsOf("u"))
	})
}

// PL-1: an event without a pod causes a relist.
func TestGenerator_EventWithoutPod(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(10 * time.Second)
		before, _, _ := rt.total()
		rt.set(newTestPod("u", runtime.Running), false)
		rt.with(func() { rt.emit("") })
		env.after(0)
		after, _, _ := rt.total()
		assert.Equal(t, before+1, after)
		assert.Equal(t, 1, rt.inspectionsOf("u"))
	})
}
