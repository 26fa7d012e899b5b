package pleg

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/clocktest"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// PL-4: while the stream is broken the Generator relists every second and reopens
// the stream indefinitely, with back-off.
func TestGenerator_ReopensBrokenStream(t *testing.T) {
	rt := newFakeRuntime()
	var states []bool
	cfg := Config{Hooks: Hooks{StreamChanged: func(open bool, _ error) { states = append(states, open) }}}
	inBubble(t, rt, cfg, func(env *testEnv) {
		env.after(time.Minute)
		before, _, _ := rt.total()
		assert.LessOrEqual(t, before, 3, "two at the start and one after the stream opened")

		rt.with(func() {
			rt.watchErr = errors.New("connection refused")
			for ch := range rt.streams {
				close(ch)
				delete(rt.streams, ch)
			}
		})
		env.after(0)
		now, _, _ := rt.total()
		assert.Equal(t, before+1, now, "relisted as soon as the stream broke")

		rt.set(newTestPod("unreported", runtime.Running), true)
		env.after(1500 * time.Millisecond)
		assert.Len(t, env.eventTypes(), 2, "a relist finds the change")
		env.after(10 * time.Minute)
		_, _, attempts := rt.total()
		assert.Greater(t, attempts, 20)
		assert.Less(t, attempts, 60)

		rt.with(func() { rt.watchErr = nil })
		env.after(time.Minute)
		before, _, _ = rt.total()
		env.after(4 * time.Minute)
		now, _, _ = rt.total()
		assert.Equal(t, before, now, "the relist period is long again")
		assert.Equal(t, []bool{true, false, true}, states)
	})
}

// PL-4: a relist detects a stream that loses events. Relists are then frequent
// until the stream has missed nothing for a while.
func TestGenerator_RelistsMoreOftenWhenEventsAreMissed(t *testing.T) {
	rt := newFakeRuntime()
	missed := 0
	inBubble(t, rt, Config{Hooks: Hooks{RuntimeEventsMissed: func(n int) { missed += n }}}, func(env *testEnv) {
		env.after(time.Minute)
		rt.set(newTestPod("u", runtime.Running), false)
		env.after(5 * time.Minute)
		assert.Len(t, env.eventTypes(), 2)
		assert.Equal(t, 1, missed)
		rt.set(newTestPod("u", runtime.Exited), false)
		env.after(time.Minute)
		assert.Equal(t, []EventType{ContainerDied}, env.eventTypes(), "the next missed event is found sooner")
		env.after(20 * time.Minute)
		before, _, _ := rt.total()
		env.after(10 * time.Minute)
		now, _, _ := rt.total()
		assert.Equal(t, before+2, now)
	})
}

// PL-4: a stream that hangs is opened again when a relist has found what it did not report. One that
// reports something meanwhile is not, though it may be late.
func TestGenerator_ReopensSilentStream(t *testing.T) {
	rt := newFakeRuntime()
	var broken []error
	inBubble(t, rt, Config{Hooks: Hooks{StreamChanged: func(open bool, err error) {
		if !open {
			broken = append(broken, err)
		}
	}}}, func(env *testEnv) {
		env.after(time.Minute)
		rt.set(newTestPod("u", runtime.Running), false)
		env.RequestRelist()
		env.after(10 * time.Millisecond)
		env.RequestRelist()
		env.after(10 * time.Millisecond)
		rt.with(func() { rt.emit("u") }) // late
		env.after(10 * time.Minute)
		assert.Empty(t, broken)
		env.Drain()
		rt.with(func() { clear(rt.streams) }) // the Watch call hangs
		rt.set(newTestPod("u", runtime.Exited), true)
		env.RequestRelist()
		env.after(5 * time.Second)
		require.Len(t, broken, 1)
		require.ErrorIs(t, broken[0], errSilent)
		env.Drain()
		rt.set(newTestPod("v", runtime.Running), true)
		env.after(0)
		assert.NotEmpty(t, env.Drain(), "the new stream reports it")
	})
}

// PL-9: a runtime event for a pod that neither existed before nor exists now.
func TestGenerator_EventForAbsentPod(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(time.Minute)
		rt.with(func() { rt.emit("u") })
		env.after(0)
		events := env.Drain()
		require.Len(t, events, 1)
		assert.Equal(t, Event{Type: ContainerRemoved, UID: "u"}, events[0])
	})
}

// PL-1: repeated runtime events and those of unchanged pods cause inspections and
// nothing else.
func TestGenerator_IgnoresStateInEvents(t *testing.T) {
	rt := newFakeRuntime()
	rt.set(newTestPod("u", runtime.Running), false)
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(time.Minute)
		env.Drain()
		for range 100 {
			rt.with(func() { rt.emit("u"); rt.emit("") }) // the empty UID belongs to no pod
		}
		env.after(time.Second)
		assert.Empty(t, env.Drain())
		rt.with(func() {
			rt.listed = func(pods []runtime.Pod) []runtime.Pod {
				return append(pods, runtime.Pod{Containers: []runtime.Container{{ID: "unnamed"}}})
			}
		})
		env.RequestRelist()
		env.after(time.Second)
		assert.Zero(t, rt.inspectionsOf(""))
	})
}

// PL-5: starting a pod with one container takes one inspection. Runtime events
// during the worker's sync are covered by the inspection at its end.
func TestGenerator_PodStartNeedsOneInspection(t *testing.T) {
	for _, tt := range []struct {
		name     string
		watchErr error
	}{{"with an event stream", nil}, {"without one", runtime.ErrUnsupported}} {
		t.Run(tt.name, func(t *testing.T) {
			rt := newFakeRuntime()
			rt.watchErr = tt.watchErr
			inBubble(t, rt, Config{}, func(env *testEnv) {
				env.after(10 * time.Second)
				env.SyncStarted("u")
				_, err := env.GetNewerThan(env.t.Context(), "u", time.Time{})
				require.NoError(t, err)
				rt.set(newTestPod("u"), true) // sandbox
				env.after(400 * time.Millisecond)
				rt.set(newTestPod("u", runtime.Created), true)
				env.after(100 * time.Millisecond)
				rt.set(newTestPod("u", runtime.Running), true)
				env.after(time.Millisecond)
				assert.Zero(t, rt.inspectionsOf("u"))

				p, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
				require.NoError(t, err)
				assert.True(t, p.CouldHaveRunningContainers())
				env.SyncEnded("u", false)
				env.after(10 * time.Second)
				assert.Equal(t, 1, rt.inspectionsOf("u"))
				assert.Equal(t, []EventType{ContainerStarted, ContainerStarted}, env.eventTypes())
			})
		})
	}
}

// PL-7: if no time passes between calls, as in a bubble, states are still new
// enough and no inspection is made in vain.
func TestGenerator_EqualTimestamps(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(10 * time.Second)
		for i, s := range []runtime.ContainerState{runtime.Created, runtime.Running, runtime.Exited} {
			rt.set(newTestPod("u", s), false)
			env.RequestInspection("u")
			if i == 1 {
				env.after(0) // the inspection has ended; otherwise it is under way
			}
			for range 2 {
				p, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
				require.NoError(t, err)
				assert.Equal(t, s, p.Containers[0].State)
				assert.Equal(t, i+1, rt.inspectionsOf("u"))
			}
		}
		// An inspection that began in this instant for another reason may have
		// missed the change.
		rt.with(func() { rt.inspectDelay = func(types.UID) time.Duration { return time.Millisecond } })
		env.handleRuntimeEvent("u", time.Time{})
		env.after(0)
		rt.set(newTestPod("u", runtime.Unknown), false)
		p, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
		require.NoError(t, err)
		assert.Equal(t, runtime.Unknown, p.Containers[0].State)
		rt.with(func() { rt.inspectDelay = nil })
		first := rt.inspectionsOf("u")

		// Without RequestInspection every call needs an inspection.
		before := time.Now()
		env.after(time.Second)
		for i := range 3 {
			rt.set(newTestPod("u", runtime.ContainerState(1+i)), false)
			p, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
			require.NoError(t, err)
			assert.Equal(t, runtime.ContainerState(1+i), p.Containers[0].State)
		}
		assert.Equal(t, first+3, rt.inspectionsOf("u"))
		_, err = env.GetNewerThan(env.t.Context(), "u", before)
		require.NoError(t, err)
		assert.Equal(t, first+3, rt.inspectionsOf("u"))
	})
}

// PL-1: a long sync defers the inspection for MaxDeferral at most, and a sync that
// ends without GetNewerThan does not lose the deferred change.
func TestGenerator_DefersEventsWhileSyncing(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(10 * time.Second)
		env.SyncStarted("u")
		rt.set(newTestPod("u", runtime.Created), true)
		env.after(999 * time.Millisecond)
		assert.Zero(t, rt.inspectionsOf("u"))
		env.after(time.Millisecond)
		assert.Equal(t, 1, rt.inspectionsOf("u"))

		rt.set(newTestPod("u", runtime.Running), true)
		env.after(0)
		assert.Equal(t, 1, rt.inspectionsOf("u"))
		env.SyncEnded("u", false)
		env.after(0)
		assert.Equal(t, 2, rt.inspectionsOf("u"))
	})
}

// timestampedRuntime is a runtime with a stream of timestamped events that arrive
// late.
type timestampedRuntime struct{ *fakeRuntime }

func (rt timestampedRuntime) WatchTimestamped(ctx context.Context, onEvent func(types.UID, time.Time)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	return rt.Watch(ctx, func(uid types.UID) {
		at := time.Now()
		wg.Go(func() {
			if sleep.For(ctx, 50*time.Millisecond) == nil {
				onEvent(uid, at)
			}
		})
	})
}

// PL-5: a late runtime event does not cause an inspection if a newer inspection
// covers its change.
func TestGenerator_LateEventNeedsNoInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newFakeRuntime()
		g, err := New(Config{Runtime: timestampedRuntime{rt}, Cache: discardCache{}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		time.Sleep(time.Minute)
		rt.set(newTestPod("u", runtime.Running), true)
		time.Sleep(time.Millisecond)
		_, err = g.GetNewerThan(ctx, "u", time.Now())
		require.NoError(t, err)
		time.Sleep(30 * time.Second)
		assert.Equal(t, 1, rt.inspectionsOf("u"))

		_, err = g.GetNewerThan(ctx, "u", time.Now())
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
		rt.set(newTestPod("u", runtime.Exited), true)
		time.Sleep(30 * time.Second)
		assert.Equal(t, 3, rt.inspectionsOf("u"))

		// After the clock was set back, the time of a new event is old.
		g.handleRuntimeEvent("u", time.Now().Add(-time.Hour))
		time.Sleep(time.Second)
		assert.Equal(t, 4, rt.inspectionsOf("u"))
		cancel()
		wg.Wait()
	})
}

// Whether an inspection covers a runtime event depends on the age of both and not on
// the wall clock, which may have been set in between.
func TestPodRecord_IsCoveredBy(t *testing.T) {
	now := time.Now()
	startTime := now.Add(-100 * time.Millisecond)
	ago := func(d time.Duration) time.Time { return now.Add(-d).Round(0) } // without a monotonic reading, as from a runtime
	for _, tt := range []struct {
		name      string
		startTime time.Time
		at        time.Time
		want      bool
	}{
		{"before the inspection", startTime, ago(time.Second), true},
		{"after it", startTime, ago(time.Millisecond), false},
		{"no time", startTime, time.Time{}, false},
		{"an old inspection", now.Add(-5 * time.Second), ago(6 * time.Second), false},
		{"an inspection that is just too old", now.Add(-time.Second), ago(2 * time.Second), false},
		{"an event that is just too late", startTime, ago(maxEventDelay), false},
		{"an event that is just in time", startTime, ago(maxEventDelay - 1), true},
		{"after it, and the clock was set back in between", clocktest.BeforeSetBack(t, startTime, time.Hour), ago(time.Millisecond), false},
		{"before it, and the clock was set back in between", clocktest.BeforeSetBack(t, startTime, time.Hour), now.Add(time.Hour - time.Second).Round(0), false},
		{"after it, and the clock was set forward in between", clocktest.BeforeSetBack(t, startTime, -time.Hour), ago(time.Millisecond), false},
		{"the clock was set forward on the event's way", startTime, ago(time.Hour), false},
	} {
		r := &podRecord{lastStartTime: tt.startTime}
		assert.Equal(t, tt.want, r.isCoveredBy(tt.at, now, time.Second), tt.name)
	}
}

// PL-5: a pod that an inspection found absent during a relist that does not contain
// it is not inspected again.
func TestGenerator_AbsenceNewerThanRelist(t *testing.T) {
	rt := newFakeRuntime()
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(10 * time.Second)
		rt.with(func() { rt.listDelay = time.Second })
		env.RequestRelist()
		env.after(500 * time.Millisecond)
		requestedAt := time.Now()
		env.after(100 * time.Millisecond)
		_, err := env.GetNewerThan(env.t.Context(), "u", time.Now())
		require.NoError(t, err)
		env.after(time.Second)
		_, err = env.GetNewerThan(env.t.Context(), "u", requestedAt)
		require.NoError(t, err)
		assert.Equal(t, 1, rt.inspectionsOf("u"))
	})
}

// PL-1: a pod with a runtime event during the first relist is inspected although
// that relist does not contain it and the event is deferred.
func TestGenerator_EventDuringFirstRelist(t *testing.T) {
	rt := newFakeRuntime()
	rt.listDelay = 500 * time.Millisecond
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.SyncStarted("u")
		env.after(100 * time.Millisecond)
		rt.set(newTestPod("u", runtime.Running), true) // after the list was made
		rt.with(func() { rt.listed = func([]runtime.Pod) []runtime.Pod { return nil } })
		p, err := env.GetNewerThan(env.t.Context(), "u", time.Time{})
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
	})
}
