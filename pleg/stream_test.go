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
	"github.com/sublet-dev/agent/runtime"
)

// PL-4: while the stream is broken everything is listed each second, and it is
// opened again for ever, more and more rarely.
func TestBrokenStream(t *testing.T) {
	w := newWorld()
	var states []bool
	cfg := Config{Hooks: Hooks{StreamChanged: func(open bool, _ error) { states = append(states, open) }}}
	inBubble(t, w, cfg, func(b *testEnv) {
		b.after(time.Minute)
		before, _, _ := w.total()
		assert.LessOrEqual(t, before, 3, "two at the start and one once the stream is open")

		w.with(func() {
			w.watchErr = errors.New("refused")
			for ch := range w.streams {
				close(ch)
				delete(w.streams, ch)
			}
		})
		b.after(0)
		now, _, _ := w.total()
		assert.Equal(t, before+1, now, "listed as soon as the stream broke")

		b.w.set(pod("unseen", runtime.Running), true)
		b.after(1500 * time.Millisecond)
		assert.Len(t, b.kinds(), 2, "a listing finds what no stream tells")
		b.after(10 * time.Minute)
		_, _, tries := w.total()
		assert.Greater(t, tries, 20)
		assert.Less(t, tries, 60)

		w.with(func() { w.watchErr = nil })
		b.after(time.Minute)
		before, _, _ = w.total()
		b.after(4 * time.Minute)
		now, _, _ = w.total()
		assert.Equal(t, before, now, "the stream is trusted again")
		assert.Equal(t, []bool{true, false, true}, states)
	})
}

// A stream that swallows events is found out by a listing, which then is taken
// more often until the stream has proved itself.
func TestStreamThatSwallowsEvents(t *testing.T) {
	w := newWorld()
	missed := 0
	inBubble(t, w, Config{Hooks: Hooks{RuntimeEventsMissed: func(n int) { missed += n }}}, func(b *testEnv) {
		b.after(time.Minute)
		b.w.set(pod("u", runtime.Running), false)
		b.after(5 * time.Minute)
		assert.Len(t, b.kinds(), 2)
		assert.Equal(t, 1, missed)
		b.w.set(pod("u", runtime.Exited), false)
		b.after(5 * time.Second)
		assert.Equal(t, []EventType{ContainerDied}, b.kinds(), "the next lie is found sooner")
		b.after(20 * time.Minute)
		before, _, _ := w.total()
		b.after(10 * time.Minute)
		now, _, _ := w.total()
		assert.Equal(t, before+2, now)
	})
}

// PL-9: word of a pod that was never there and is not there either.
func TestHintOfWhatIsGoneAlready(t *testing.T) {
	w := newWorld()
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(time.Minute)
		w.with(func() { w.tell("u") })
		b.after(0)
		events := b.Drain()
		require.Len(t, events, 1)
		assert.Equal(t, Event{Type: ContainerRemoved, UID: "u"}, events[0])
	})
}

// PL-1: a stream that repeats itself and speaks of pods that did not change
// makes for inspections and nothing else.
func TestGenerator_IgnoresStateInEvents(t *testing.T) {
	w := newWorld()
	w.set(pod("u", runtime.Running), false)
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(time.Minute)
		b.Drain()
		for range 100 {
			w.with(func() { w.tell("u"); w.tell("") }) // the empty name is nobody's
		}
		b.after(time.Second)
		assert.Empty(t, b.Drain())
		w.with(func() {
			w.listed = func(pods []runtime.Pod) []runtime.Pod {
				return append(pods, runtime.Pod{Containers: []runtime.Container{{ID: "stray"}}})
			}
		})
		b.RequestRelist()
		b.after(time.Second)
		assert.Zero(t, w.looked(""))
	})
}

// A one-container pod is started with one inspection: what the stream tells
// during the worker's turn is looked into by the view that the turn ends with.
func TestStartCostsOneInspection(t *testing.T) {
	for _, tt := range []struct {
		name  string
		watch error
	}{{"with an event stream", nil}, {"without one", runtime.ErrUnsupported}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.watchErr = tt.watch
			busy := true
			inBubble(t, w, Config{IsWorking: func(types.UID) bool { return busy }}, func(b *testEnv) {
				b.after(10 * time.Second)
				_, err := b.GetNewerThan(b.t.Context(), "u", time.Time{})
				require.NoError(t, err)
				b.w.set(pod("u"), true) // sandbox
				b.after(400 * time.Millisecond)
				b.w.set(pod("u", runtime.Created), true)
				b.after(100 * time.Millisecond)
				b.w.set(pod("u", runtime.Running), true)
				b.after(time.Millisecond)
				assert.Zero(t, w.looked("u"))

				p, err := b.GetNewerThan(b.t.Context(), "u", time.Now())
				require.NoError(t, err)
				assert.True(t, p.CouldHaveRunningContainers())
				busy = false
				b.MarkIdle("u")
				b.after(10 * time.Second)
				assert.Equal(t, 1, w.looked("u"))
				assert.Equal(t, []EventType{ContainerStarted, ContainerStarted}, b.kinds())
			})
		})
	}
}

// Where no time passes between calls, as in a bubble, views are still as new as
// was asked for, and no more are taken than needed.
func TestGenerator_EqualTimestamps(t *testing.T) {
	w := newWorld()
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(10 * time.Second)
		for i, s := range []runtime.ContainerState{runtime.Created, runtime.Running, runtime.Exited} {
			w.set(pod("u", s), false)
			b.RequestInspection("u")
			if i == 1 {
				b.after(0) // the inspection has ended, else it has not
			}
			for range 2 {
				p, err := b.GetNewerThan(b.t.Context(), "u", time.Now())
				require.NoError(t, err)
				assert.Equal(t, s, p.Containers[0].State)
				assert.Equal(t, i+1, w.looked("u"))
			}
		}
		// An inspection that began in this instant, for another reason, may have
		// missed what came after.
		w.with(func() { w.takes = func(types.UID) time.Duration { return time.Millisecond } })
		b.handleRuntimeEvent("u", time.Time{})
		b.after(0)
		w.set(pod("u", runtime.Unknown), false)
		p, err := b.GetNewerThan(b.t.Context(), "u", time.Now())
		require.NoError(t, err)
		assert.Equal(t, runtime.Unknown, p.Containers[0].State)
		w.with(func() { w.takes = nil })
		first := w.looked("u")

		// Nobody says that something was changed: it has to be looked at each time.
		before := time.Now()
		b.after(time.Second)
		for i := range 3 {
			w.set(pod("u", runtime.ContainerState(1+i)), false)
			p, err := b.GetNewerThan(b.t.Context(), "u", time.Now())
			require.NoError(t, err)
			assert.Equal(t, runtime.ContainerState(1+i), p.Containers[0].State)
		}
		assert.Equal(t, first+3, w.looked("u"))
		_, err = b.GetNewerThan(b.t.Context(), "u", before)
		require.NoError(t, err)
		assert.Equal(t, first+3, w.looked("u"))
	})
}

// A turn that takes long does not keep the pod from being seen, and one that
// ends without asking does not lose what was held back.
func TestGenerator_DefersEventsWhileSyncing(t *testing.T) {
	w := newWorld()
	busy := true
	inBubble(t, w, Config{IsWorking: func(types.UID) bool { return busy }}, func(b *testEnv) {
		b.after(10 * time.Second)
		w.set(pod("u", runtime.Created), true)
		b.after(999 * time.Millisecond)
		assert.Zero(t, w.looked("u"))
		b.after(time.Millisecond)
		assert.Equal(t, 1, w.looked("u"))

		w.set(pod("u", runtime.Running), true)
		b.after(0)
		assert.Equal(t, 1, w.looked("u"))
		busy = false
		b.MarkIdle("u")
		b.after(0)
		assert.Equal(t, 2, w.looked("u"))
	})
}

// dated is a world whose stream tells when things happened, and is late.
type dated struct{ *fakeRuntime }

func (d dated) WatchTimestamped(ctx context.Context, hint func(types.UID, time.Time)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	return d.Watch(ctx, func(uid types.UID) {
		at := time.Now()
		wg.Go(func() {
			if wait(ctx, 50*time.Millisecond) == nil {
				hint(uid, at)
			}
		})
	})
}

// A hint that comes after the inspection that saw what it tells of is no reason
// for another; one of something newer is.
func TestLateHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		g, err := New(Config{Runtime: dated{w}, Cache: nothing{}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, g.Run(ctx)) })
		time.Sleep(time.Minute)
		w.set(pod("u", runtime.Running), true)
		time.Sleep(time.Millisecond)
		_, err = g.GetNewerThan(ctx, "u", time.Now())
		require.NoError(t, err)
		time.Sleep(30 * time.Second)
		assert.Equal(t, 1, w.looked("u"))

		_, err = g.GetNewerThan(ctx, "u", time.Now())
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
		w.set(pod("u", runtime.Exited), true)
		time.Sleep(30 * time.Second)
		assert.Equal(t, 3, w.looked("u"))

		// The clock was set back: what comes now looks old, and is not.
		g.handleRuntimeEvent("u", time.Now().Add(-time.Hour))
		time.Sleep(time.Second)
		assert.Equal(t, 4, w.looked("u"))
		cancel()
		wg.Wait()
	})
}

// Whether an event is of what an inspection has seen goes by how long ago it was,
// not by what the wall clock said: that may have been set in between.
func TestCovers(t *testing.T) {
	now := time.Now()
	began := now.Add(-100 * time.Millisecond)
	ago := func(d time.Duration) time.Time { return now.Add(-d).Round(0) } // as a runtime tells it
	for _, tt := range []struct {
		name  string
		began time.Time
		at    time.Time
		want  bool
	}{
		{"before the inspection", began, ago(time.Second), true},
		{"after it", began, ago(time.Millisecond), false},
		{"no time", began, time.Time{}, false},
		{"an inspection of long ago", now.Add(-time.Minute), ago(2 * time.Minute), false},
		{"after it, and the clock was set back in between", clocktest.BeforeSetBack(t, began, time.Hour), ago(time.Millisecond), false},
		{"before it, and the clock was set back in between", clocktest.BeforeSetBack(t, began, time.Hour), now.Add(time.Hour - time.Second).Round(0), false},
		{"after it, and the clock was set forward in between", clocktest.BeforeSetBack(t, began, -time.Hour), ago(time.Millisecond), false},
		{"the clock was set forward on the event's way", began, ago(time.Hour), false},
	} {
		r := &podRecord{began: tt.began}
		assert.Equal(t, tt.want, r.isCoveredBy(tt.at, now, time.Second), tt.name)
	}
}

// PL-5: a pod that is absent, and was inspected while a listing that lacks it was
// under way, is known to be so: it is not inspected again.
func TestAbsenceThatIsNewerThanAListing(t *testing.T) {
	w := newWorld()
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(10 * time.Second)
		w.with(func() { w.listTakes = time.Second })
		b.RequestRelist()
		b.after(500 * time.Millisecond)
		asked := time.Now()
		b.after(100 * time.Millisecond)
		_, err := b.GetNewerThan(b.t.Context(), "u", time.Now())
		require.NoError(t, err)
		b.after(time.Second)
		_, err = b.GetNewerThan(b.t.Context(), "u", asked)
		require.NoError(t, err)
		assert.Equal(t, 1, w.looked("u"))
	})
}

// PL-1: a pod of which the stream told during the first listing is inspected,
// though that listing does not have it and what it told is held back.
func TestHintDuringTheFirstListing(t *testing.T) {
	w := newWorld()
	w.listTakes = 500 * time.Millisecond
	inBubble(t, w, Config{IsWorking: func(types.UID) bool { return true }}, func(b *testEnv) {
		b.after(100 * time.Millisecond)
		w.set(pod("u", runtime.Running), true) // the listing was made before
		w.with(func() { w.listed = func([]runtime.Pod) []runtime.Pod { return nil } })
		p, err := b.GetNewerThan(b.t.Context(), "u", time.Time{})
		require.NoError(t, err)
		assert.Len(t, p.Containers, 1)
	})
}
