package pleg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// PL-6: inspections run in parallel, so many at a time and one a pod.
func TestParallel(t *testing.T) {
	w := newWorld()
	w.takes = func(types.UID) time.Duration { return 100 * time.Millisecond }
	for i := range 100 {
		w.set(pod(types.UID(fmt.Sprint(i)), runtime.Running), false)
	}
	inBubble(t, w, Config{MaxParallel: 7}, func(b *testEnv) {
		b.after(1400 * time.Millisecond)
		assert.Len(t, b.cache.Pods(), 98)
		for i := range 100 {
			b.RequestInspection(types.UID(fmt.Sprint(i % 3)))
		}
		b.after(time.Minute)
		w.with(func() { assert.Equal(t, 7, w.max) })
	})
}

// changeAll makes every pod but the hung ones change, and returns how long it
// took until the last one was told of.
func changeAll(b *testEnv, n int, s runtime.ContainerState) time.Duration {
	began := time.Now()
	for i := range n {
		b.w.set(pod(types.UID(fmt.Sprint(i)), s), true)
	}
	seen := 0
	for seen < n {
		select {
		case <-b.Notify():
			seen += len(b.Drain())
		case <-time.After(time.Minute):
			b.t.Fatalf("%d of %d were told", seen, n)
		}
	}
	return time.Since(began)
}

// PL-6: pods that hang delay no other for longer than it takes to see that they
// hang, and nobody once that is known.
func TestHungPodsDelayNobody(t *testing.T) {
	const n = 300
	for _, hung := range []int{1, 10, 50} {
		t.Run(fmt.Sprint(hung), func(t *testing.T) {
			w := newWorld()
			for i := range n {
				w.set(pod(types.UID(fmt.Sprint(i)), runtime.Created), false)
			}
			w.takes = func(types.UID) time.Duration { return 10 * time.Millisecond }
			inBubble(t, w, Config{}, func(b *testEnv) {
				b.after(time.Minute)
				b.Drain()
				alone := changeAll(b, n, runtime.Running)

				w.with(func() {
					w.takes = func(uid types.UID) time.Duration {
						if uid[0] == 'h' {
							return hang
						}
						return 10 * time.Millisecond
					}
				})
				for i := range hung {
					w.set(pod(types.UID(fmt.Sprint("h", i)), runtime.Running), true)
				}
				b.after(0)
				first := changeAll(b, n, runtime.Exited)
				turns := (hung + 9) / 10 // each takes all slots, for a second
				assert.LessOrEqual(t, first.Seconds(), alone.Seconds()*1.2+float64(turns))

				b.after(20 * time.Minute)
				assert.Len(t, b.InspectionErrors(), hung)
				require.NoError(t, b.Healthy())
				for i := range 100 { // whatever inspections of hung pods begin meanwhile
					b.after(777 * time.Millisecond)
					s := runtime.Running + runtime.ContainerState(i%2)
					assert.LessOrEqual(t, changeAll(b, n, s), alone*12/10)
				}
				assert.Empty(t, b.Drain())
			})
		})
	}
}

// A pod that was listed is unseen until an inspection has shown it, be it that it
// hangs.
func TestGenerator_Unseen(t *testing.T) {
	w := newWorld()
	hangs := true
	w.takes = func(uid types.UID) time.Duration {
		if uid == "slow" && hangs {
			return time.Hour
		}
		return time.Second
	}
	w.set(pod("slow", runtime.Running), false)
	w.set(pod("quick", runtime.Running), false)
	inBubble(t, w, Config{}, func(b *testEnv) {
		assert.Empty(t, b.Uninspected(), "nothing was listed yet")
		b.after(10 * time.Millisecond)
		assert.ElementsMatch(t, []types.UID{"slow", "quick"}, b.Uninspected())
		assert.True(t, b.IsUnseen("quick"))
		assert.False(t, b.IsUnseen("stranger"))
		b.after(5 * time.Minute)
		assert.Equal(t, []types.UID{"slow"}, b.Uninspected(), "its inspection has failed")
		assert.True(t, b.IsUnseen("slow"))
		assert.False(t, b.IsUnseen("quick"))
		w.with(func() { hangs = false })
		b.after(time.Hour)
		assert.False(t, b.IsUnseen("slow"))
	})
}

// PL-8: a single pod that hangs is that pod's fault.
func TestGenerator_SlowPodDoesNotFailHealth(t *testing.T) {
	w := newWorld()
	w.takes = func(uid types.UID) time.Duration {
		if uid == "hung" {
			return hang
		}
		return 0
	}
	w.set(pod("hung", runtime.Running), false)
	w.set(pod("well", runtime.Running), false)
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(2 * time.Second)
		require.Len(t, b.InspectionErrors(), 1)
		assert.Equal(t, types.UID("hung"), b.InspectionErrors()[0].UID)
		require.ErrorContains(t, b.InspectionErrors()[0], "inspect pod hung: no answer yet")
		b.after(10 * time.Minute)
		require.NoError(t, b.Healthy())
		require.ErrorIs(t, b.InspectionErrors()[0], context.DeadlineExceeded)
		w.with(func() { w.takes = nil })
		b.after(2 * time.Minute)
		assert.Empty(t, b.InspectionErrors())
		assert.Len(t, b.kinds(), 4)
	})
}

// PL-8: a runtime that hangs is told of by the call that hangs, also when an
// event stream is open and nothing would be listed for minutes.
func TestHungRuntime(t *testing.T) {
	w := newWorld()
	w.set(pod("u", runtime.Running), false)
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(20 * time.Second)
		w.with(func() {
			w.listTakes = hang
			w.takes = func(types.UID) time.Duration { return hang }
		})
		b.RequestInspection("u")
		b.after(2 * time.Minute)
		require.NoError(t, b.Healthy())
		b.after(2 * time.Minute)
		err := b.Healthy()
		require.ErrorContains(t, err, "list pods")
		require.ErrorContains(t, err, "has not answered for 3m")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		w.with(func() { w.listTakes, w.takes = 0, nil })
		b.after(2 * time.Minute)
		require.NoError(t, b.Healthy())
	})
}

func TestHungListingIsNamedWhileItHangs(t *testing.T) {
	w := newWorld()
	w.listTakes = hang
	inBubble(t, w, Config{Timeout: hang}, func(b *testEnv) {
		b.after(3*time.Minute - 1)
		require.NoError(t, b.Healthy())
		b.after(1)
		require.EqualError(t, b.Healthy(), "runtime has not answered for 3m0s: list pods hangs since 3m0s")
	})
}

// PL-8: a runtime that answers with errors only has not answered.
func TestFailingRuntime(t *testing.T) {
	w := newWorld()
	down := errors.New("ListPodSandbox: connection refused")
	w.listErr = down
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(3 * time.Minute)
		require.ErrorIs(t, b.Healthy(), down)
		w.with(func() { w.listErr = nil })
		b.after(time.Second)
		require.NoError(t, b.Healthy())
	})
}

// A runtime that is away is asked each second, and that it does not answer is logged
// once a minute, until it does.
func TestFailingRuntimeIsLoggedNowAndThen(t *testing.T) {
	w := newWorld()
	w.listErr = errors.New("connection refused")
	var log bytes.Buffer
	inBubble(t, w, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(b *testEnv) {
		b.after(150 * time.Second)
		w.with(func() { w.listErr = nil })
		b.after(10 * time.Second)
		w.with(func() { w.listErr = errors.New("again") })
		b.RequestRelist()
		b.after(time.Second)
	})
	require.Equal(t, 3+1, strings.Count(log.String(), "pods cannot be listed"))
	require.Equal(t, 1, strings.Count(log.String(), "pods can be listed again"))
}

// A listing that takes a minute holds up no inspection, and what it says is
// older than what they found.
func TestSlowListing(t *testing.T) {
	w := newWorld()
	w.set(pod("u", runtime.Running), false)
	inBubble(t, w, Config{Timeout: 2 * time.Minute}, func(b *testEnv) {
		b.after(10 * time.Second)
		b.Drain()
		w.with(func() { w.listTakes = time.Minute })
		b.RequestRelist()
		b.after(time.Second)
		w.set(pod("u", runtime.Exited), true)
		w.set(pod("v", runtime.Running), true)
		b.after(0)
		assert.ElementsMatch(t, []EventType{ContainerDied, ContainerStarted, ContainerStarted}, b.kinds())
		b.after(5 * time.Minute)
		assert.Empty(t, b.kinds())
		p, _ := b.cache.Get("u")
		assert.Equal(t, runtime.Exited, p.Containers[0].State)
		_, ok := b.cache.Get("v")
		assert.True(t, ok)
	})
}

// A runtime whose listings contradict its inspections is not asked again each
// second for ever.
func TestListingThatContradictsInspections(t *testing.T) {
	w := newWorld()
	w.watchErr = runtime.ErrUnsupported
	w.set(pod("u", runtime.Unknown), false)
	w.set(pod("v", runtime.Running), false)
	w.listed = func([]runtime.Pod) []runtime.Pod { return []runtime.Pod{pod("u", runtime.Running)} }
	inBubble(t, w, Config{}, func(b *testEnv) {
		b.after(time.Second)
		b.RequestInspection("v")
		b.after(time.Hour)
		assert.Less(t, w.looked("u"), 75)
		assert.Less(t, w.looked("v"), 75)
		w.with(func() { w.listed = nil })
		w.set(pod("u", runtime.Exited), false)
		b.Drain()
		b.after(time.Second)
		assert.Equal(t, []EventType{ContainerDied}, b.kinds())
	})
}
