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
	"github.com/sublet-dev/agent/probe"
)

// fakeHandler records its calls.
type fakeHandler struct{ *callLog }

func (f fakeHandler) HandlePodChange(c podsource.Change) {
	f.note("change %v %d", c.Op, len(c.Pods))
}

func (f fakeHandler) HandlePodSync(u types.UID, why podworkers.RequeueReason) {
	f.note("wake %s %v", u, why)
}

func (f fakeHandler) Revisit(finished []types.UID) time.Time {
	if len(finished) > 0 {
		f.note("revisit %v", finished)
	}
	return time.Time{}
}
func (f fakeHandler) HandlePodRecreations(uids []types.UID) { f.note("again %v", uids) }

type loopEnv struct {
	*Loop
	log     callLog
	changes chan podsource.Change
	events  *backlog[pleg.Event]
	probes  *backlog[probe.ResultChange]
	workers *fakeLoopWorkers
	recheck chan struct{}
	stopped chan error
	cancel  context.CancelFunc

	mu    sync.Mutex
	ready func() error // RuntimeState.Ready
	asked []time.Duration
}

// says sets the result of Ready.
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

func (b *loopEnv) Recheck() <-chan struct{} { return b.recheck }

// podFinished reports that a pod has finished.
func (b *loopEnv) podFinished(uid types.UID) { b.workers.finished.put(uid) }

// start runs a Loop in a bubble.
func start(t *testing.T, change ...func(*loopEnv, *Config)) *loopEnv {
	t.Helper()
	b := &loopEnv{
		changes: make(chan podsource.Change), events: newBacklog[pleg.Event](), probes: newBacklog[probe.ResultChange](),
		recheck: make(chan struct{}, 1), stopped: make(chan error, 1),
	}
	b.log.began = time.Now()
	b.workers = &fakeLoopWorkers{callLog: &b.log, finished: newBacklog[types.UID]()}
	cfg := Config{Changes: b.changes, Handler: fakeHandler{&b.log}, Events: b.events, Probes: b.probes, Workers: b.workers}
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
		b.probes.put(
			probe.ResultChange{UID: "a", Type: probe.Startup}, probe.ResultChange{UID: "a", Type: probe.Readiness}, probe.ResultChange{UID: "b"},
		)
		synctest.Wait()
		assert.Equal(t, []string{
			"0s change ADD 1", "0s wake a RequeueEvent", "0s wake c RequeueEvent", "0s wake a RequeueNow", "0s wake b RequeueNow",
		}, b.log.take())
		assert.Equal(t, []Input{InputChange, InputEvent, InputProbe}, inputs)
		require.NoError(t, b.Healthy())
		assert.Equal(t, time.Now(), b.LastIteration())
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
			c.RuntimeState = b
			c.Hooks.RuntimeReadyChanged = func(err error) { ready = append(ready, err) }
		})
		b.events.put(pleg.Event{Type: pleg.PodSync, UID: "a"})
		go func() { b.changes <- podsource.Change{Op: podsource.Add} }()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"0s pause true"}, b.log.take(), "no input is handled")
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
		assert.ElementsMatch(t, []string{"20s change ADD 0", "20s wake a RequeueEvent", "20s pause false"}, b.log.take(), "no input is lost, and all are handled at once")
		require.NoError(t, b.Healthy())
		assert.Equal(t, []error{nil}, ready)
	})
}

// SL-2: a runtime may be not ready for up to 30 s.
func TestRuntimeGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *loopEnv, c *Config) {
			b.says(nil)
			c.RuntimeState = b
		})
		require.NoError(t, b.Healthy())
		assert.Equal(t, []string{"0s pause true", "0s pause false"}, b.log.take())
		b.says(errors.New("gone"))
		wake := func() []string {
			b.probes.put(probe.ResultChange{UID: "a"})
			synctest.Wait()
			return b.log.take()
		}
		time.Sleep(29 * time.Second)
		assert.Len(t, wake(), 1)
		require.NoError(t, b.Healthy())
		time.Sleep(3 * time.Second)
		assert.Equal(t, []string{"30.001s pause true"}, wake())
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
		require.ErrorContains(t, b.Healthy(), "gone")
		b.says(nil)
		time.Sleep(5 * time.Second)
		assert.Equal(t, []string{"36.3s pause false", "36.3s wake a RequeueNow"}, b.log.take())
		require.NoError(t, b.Healthy())
	})
}

// SL-2: a runtime that hangs blocks neither the loop nor its health.
func TestRuntimeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := start(t, func(b *loopEnv, c *Config) {
			b.says(nil)
			c.RuntimeState = b
		})
		b.log.take()
		b.does(func() error { <-release; return nil })
		time.Sleep(20 * time.Second)
		b.probes.put(probe.ResultChange{UID: "a"})
		synctest.Wait()
		assert.Equal(t, []string{"20s wake a RequeueNow"}, b.log.take())
		time.Sleep(10*time.Second + 10*time.Millisecond)
		synctest.Wait()
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
		require.ErrorContains(t, b.Healthy(), "no status since")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
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
			c.IdleHousekeepingPeriod = 24 * time.Hour
			c.Hooks.IterationEnded = func(in Input, _ time.Duration) {
				if in == InputProbe {
					<-release
				}
			}
		})
		time.Sleep(time.Hour)
		require.NoError(t, b.Healthy(), "an idle loop turns")
		b.probes.put(probe.ResultChange{UID: "a"})
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

// SL-8, SL-5: a loop whose workers do not requeue pods that are due is not healthy,
// unless it waits for the runtime.
func TestLoop_OverduePodsAreUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *loopEnv, c *Config) { b.says(nil); c.RuntimeState = b })
		require.NoError(t, b.Healthy())
		b.workers.overdue.Store(3)
		require.ErrorIs(t, b.Healthy(), ErrStalled)
		require.ErrorContains(t, b.Healthy(), "pods due for more than 2m0s: 3")
		b.says(errors.New("away"))
		time.Sleep(time.Minute)
		require.ErrorIs(t, b.Healthy(), ErrRuntimeNotReady)
	})
}
