package syncloop

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

	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
)

// fakeHandler records its calls.
type fakeHandler struct{ *callLog }

func (f fakeHandler) HandlePodChange(c podsource.Change) {
	f.note("change %v %d", c.Op, len(c.Pods))
}

func (f fakeHandler) HandlePodSync(u types.UID, why podworkers.RequeueReason) {
	f.note("wake %s %v", u, why)
}

func (f fakeHandler) Revisit(finished []types.UID) {
	if len(finished) > 0 {
		f.note("revisit %v", finished)
	}
}
func (f fakeHandler) HandlePodRecreations(uids []types.UID) { f.note("again %v", uids) }

type loopEnv struct {
	*Loop
	log     callLog
	changes chan podsource.Change
	events  *backlog[pleg.Event]
	probes  *backlog[types.UID]
	recheck chan struct{}
	stopped chan error
	cancel  context.CancelFunc

	mu    sync.Mutex
	ready func() error // Config.RuntimeReady
	asked []time.Duration
}

// says sets the result of RuntimeReady.
func (b *loopEnv) says(err error) { b.does(func() error { return err }) }

func (b *loopEnv) does(ready func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = ready
}

// Ready ignores its context.
func (b *loopEnv) Ready(context.Context) error {
	b.mu.Lock()
	b.asked = append(b.asked, time.Since(b.log.began))
	ready := b.ready
	b.mu.Unlock()
	return ready()
}

// start runs a Loop in a bubble.
func start(t *testing.T, change ...func(*loopEnv, *Config)) *loopEnv {
	t.Helper()
	b := &loopEnv{
		changes: make(chan podsource.Change), events: newBacklog[pleg.Event](), probes: newBacklog[types.UID](),
		recheck: make(chan struct{}, 1), stopped: make(chan error, 1),
	}
	b.log.began = time.Now()
	cfg := Config{Changes: b.changes, Handler: fakeHandler{&b.log}, Events: b.events, Probes: b.probes, RecheckRuntime: b.recheck}
	for _, c := range change {
		c(b, &cfg)
	}
	var err error
	b.Loop, err = New(cfg)
	require.NoError(t, err)
	require.ErrorIs(t, b.Healthy(), ErrStalled, "Run was not called")
	ctx, cancel := context.WithCancel(t.Context())
	b.cancel = cancel
	go func() { b.stopped <- b.Run(ctx) }()
	t.Cleanup(cancel)
	synctest.Wait()
	return b
}

// SL-1: each input reaches the handler.
func TestLoop_HandlesEachInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inputs []Input
		b := start(t, func(_ *loopEnv, c *Config) {
			c.Hooks.IterationEnded = func(in Input, _ time.Duration) { inputs = append(inputs, in) }
		})
		b.changes <- podsource.Change{Op: podsource.Add, Pods: []*Pod{newPod("a")}}
		synctest.Wait()
		b.events.put(
			pleg.Event{Type: pleg.ContainerDied, UID: "a"}, pleg.Event{Type: pleg.ContainerStarted, UID: "a"},
			pleg.Event{Type: pleg.ContainerRemoved, UID: "b"}, pleg.Event{Type: pleg.PodSync, UID: "c"},
		)
		synctest.Wait()
		b.probes.put("a", "b")
		synctest.Wait()
		b.RequeueAt("a", time.Now())
		synctest.Wait()
		assert.Equal(t, []string{
			"0s change ADD 1", "0s wake a RequeueEvent", "0s wake c RequeueEvent", "0s wake a RequeueNow", "0s wake b RequeueNow", "0s wake a RequeueDue",
		}, b.log.take())
		assert.Equal(t, []Input{InputChange, InputEvent, InputProbe, InputRequeue, InputRequeue}, inputs)
		require.NoError(t, b.Healthy())
		assert.Equal(t, time.Now(), b.LastIteration())
	})
}

// SL-5: pods are requeued when they are due, and not before.
func TestLoop_RequeuesPodsOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		at := func(d time.Duration) time.Time { return b.log.began.Add(d) }
		b.RequeueAt("late", at(90*time.Minute))
		b.RequeueAt("soon", at(1234*time.Millisecond))
		b.RequeueAt("moved", at(time.Second))
		b.RequeueAt("moved", at(5*time.Second))
		b.RequeueAt("off", at(2*time.Second))
		b.RequeueAt("off", time.Time{})
		b.RequeueAt("never", time.Time{})
		time.Sleep(2 * time.Hour)
		assert.Equal(t, []string{"1.234s wake soon RequeueDue", "5s wake moved RequeueDue", "1h30m0s wake late RequeueDue"}, b.log.take())
	})
}

// SL-7: a closed channel and a cancelled context end the loop, and nothing else.
func TestEndOfLoop(t *testing.T) {
	for name, end := range map[string]func(*loopEnv){
		"closed input":      func(b *loopEnv) { close(b.changes) },
		"cancelled context": func(b *loopEnv) { b.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t)
				end(b)
				assert.NoError(t, <-b.stopped)
				assert.Empty(t, b.log.take())
			})
		})
	}
}

// SL-2: a runtime that was never ready.
func TestRuntimeNotReadyAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		var ready []error
		b := start(t, func(b *loopEnv, c *Config) {
			b.says(down)
			c.RuntimeReady = b.Ready
			c.Hooks.RuntimeReadyChanged = func(err error) { ready = append(ready, err) }
		})
		b.events.put(pleg.Event{Type: pleg.PodSync, UID: "a"})
		b.RequeueAt("a", time.Now())
		go func() { b.changes <- podsource.Change{Op: podsource.Add} }()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		assert.Empty(t, b.log.take(), "nothing is handed on")
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
		require.ErrorIs(t, b.Healthy(), down)
		assert.Equal(t, []time.Duration{
			0, 100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond,
			3100 * time.Millisecond, 6300 * time.Millisecond, 11300 * time.Millisecond, 16300 * time.Millisecond,
		}, b.asked, "from 100 ms doubling to 5 s")
		assert.Empty(t, ready)

		b.says(nil)
		b.recheck <- struct{}{}
		synctest.Wait()
		assert.ElementsMatch(t, []string{"20s change ADD 0", "20s wake a RequeueEvent", "20s wake a RequeueDue"}, b.log.take(), "nothing was lost, and it goes on at once")
		require.NoError(t, b.Healthy())
		assert.Equal(t, []error{nil}, ready)
	})
}

// SL-2: a runtime may be not ready for up to 30 s.
func TestRuntimeGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *loopEnv, c *Config) {
			b.says(nil)
			c.RuntimeReady = b.Ready
		})
		require.NoError(t, b.Healthy())
		b.says(errors.New("gone"))
		wake := func() []string {
			b.probes.put("a")
			synctest.Wait()
			return b.log.take()
		}
		time.Sleep(29 * time.Second)
		assert.Len(t, wake(), 1)
		require.NoError(t, b.Healthy())
		time.Sleep(3 * time.Second)
		assert.Empty(t, wake())
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
		require.ErrorContains(t, b.Healthy(), "gone")
		b.says(nil)
		time.Sleep(5 * time.Second)
		assert.Len(t, b.log.take(), 1)
		require.NoError(t, b.Healthy())
	})
}

// SL-2: a runtime that hangs blocks neither the loop nor its health.
func TestRuntimeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := start(t, func(b *loopEnv, c *Config) {
			b.says(nil)
			c.RuntimeReady = b.Ready
		})
		b.does(func() error { <-release; return nil })
		time.Sleep(20 * time.Second)
		b.probes.put("a")
		synctest.Wait()
		assert.Equal(t, []string{"20s wake a RequeueNow"}, b.log.take())
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
		require.ErrorContains(t, b.Healthy(), "no status since")
		assert.Less(t, time.Since(b.LastIteration()), 3*time.Second)
		close(release)
		synctest.Wait()
		require.NoError(t, b.Healthy())
	})
}

// SL-8: a loop without iterations is not healthy.
func TestStuckLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := start(t, func(_ *loopEnv, c *Config) {
			c.Hooks.IterationEnded = func(in Input, _ time.Duration) {
				if in == InputProbe {
					<-release
				}
			}
		})
		time.Sleep(time.Hour)
		require.NoError(t, b.Healthy(), "an idle loop turns")
		b.probes.put("a")
		time.Sleep(time.Minute)
		require.NoError(t, b.Healthy())
		time.Sleep(2 * time.Minute)
		require.ErrorIs(t, b.Healthy(), ErrStalled)
		close(release)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.NoError(t, b.Healthy())
	})
}

// SL-8, SL-6: a loop with a cleanup that does not end is not healthy.
func TestLoop_HungHousekeeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeCleaner{callLog: &callLog{}}
		b := start(t, func(_ *loopEnv, c *Config) { c.Cleaner = k })
		time.Sleep(time.Minute)
		k.set(24 * time.Hour)
		time.Sleep(2 * time.Minute)
		require.NoError(t, b.Healthy())
		time.Sleep(2 * time.Minute)
		require.ErrorIs(t, b.Healthy(), ErrStalled)
		require.ErrorContains(t, b.Healthy(), "housekeeping")
		k.set(0)
		time.Sleep(24 * time.Hour)
		require.NoError(t, b.Healthy())
	})
}

// SL-8, SL-5: a loop that iterates but does not requeue pods that are due is not healthy.
func TestLoop_OverduePodsAreUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.RequeueAt("first", time.Now().Add(3*time.Hour))
		b.RequeueAt("second", time.Now().Add(4*time.Hour))
		b.Loop.mu.Lock()
		b.requeues.pods["second"].at = time.Now() // without an update of the heap
		b.Loop.mu.Unlock()
		time.Sleep(maxIterationAge)
		require.NoError(t, b.Healthy())
		time.Sleep(time.Minute)
		require.ErrorIs(t, b.Healthy(), ErrStalled)
		require.ErrorContains(t, b.Healthy(), "due for more than 2m0s: 1")
	})
}

// SL-8: pods that became due while the runtime was not ready do not make the loop unhealthy.
func TestLoop_PodsDueWhileRuntimeNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *loopEnv, c *Config) { b.says(nil); c.RuntimeReady = b.Ready })
		b.says(errors.New("away"))
		time.Sleep(time.Minute)
		b.RequeueAt("a", time.Now())
		time.Sleep(time.Hour)
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
		b.says(nil)
		for b.Healthy() != nil {
			require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
			time.Sleep(time.Millisecond)
		}
	})
}
