package probe

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// hang makes commands run until their context ends, which is then sent.
func (n *fakeNode) hang() <-chan context.Context {
	ended := make(chan context.Context, 10)
	n.with(func() {
		n.run = func(ctx context.Context, _ string, _ []string) (string, int, error) {
			<-ctx.Done()
			ended <- ctx
			return "", 1, ctx.Err()
		}
	})
	return ended
}

func withTimeout(seconds int32, p *corev1.Probe) *corev1.Probe {
	p.TimeoutSeconds = seconds
	return p
}

// PB-2: removing a pod cancels its running probes, and a probe that is not in the pod
// any more stops.
func TestManager_RemovedProbes(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.set("u", "1", runtime.Running)
		ended := b.n.hang()
		b.AddPod(podOf("u", nil, withTimeout(60, every(1, command("x"))), nil))
		b.after(2 * time.Second)
		assert.Empty(t, ended)
		b.RemovePod("u")
		b.after(0)
		require.Len(t, ended, 1)
		require.ErrorIs(t, (<-ended).Err(), context.Canceled)

		b.n.exit(0)
		b.AddPod(podOf("u", nil, every(1, command("x")), nil))
		b.after(5 * time.Second)
		b.AddPod(podOf("u", nil, nil, nil))
		before := b.n.ran()
		b.after(time.Minute)
		assert.Equal(t, before, b.n.ran())
	})
}

// PB-2: a new container is probed at once when AddPod is called after it was observed.
func TestManager_AddPodFindsNewContainer(t *testing.T) {
	inBubble(t, func(b *bench) {
		spec := podOf("u", nil, every(60, command("x")), nil)
		b.AddPod(spec)
		b.after(time.Second)
		b.n.set("u", "1", runtime.Running)
		b.AddPod(spec)
		b.after(time.Second)
		assert.Equal(t, 1, b.n.ran())
	})
}

// PB-2: a container that was replaced while the probe of the previous one ran is probed
// at once after it, and the result is that of the previous one.
func TestManager_ContainerReplacedDuringRun(t *testing.T) {
	inBubble(t, func(b *bench) {
		live := withTimeout(10, every(60, command("x")))
		live.FailureThreshold = 1
		b.n.set("u", "1", runtime.Running)
		b.n.hang()
		spec := podOf("u", nil, nil, live)
		b.AddPod(spec)
		b.after(5 * time.Second)
		require.Equal(t, 1, b.n.ran())
		b.n.set("u", "2", runtime.Running)
		b.AddPod(spec)
		b.after(7 * time.Second)
		assert.Equal(t, []string{"Liveness 1 failed"}, b.changes())
		b.after(time.Second)
		assert.Equal(t, 2, b.n.ran())
	})
	inBubble(t, func(b *bench) {
		b.n.set("u", "1", runtime.Running)
		b.n.hang()
		b.AddPod(podOf("u", nil, withTimeout(10, every(60, command("x"))), nil))
		b.after(5 * time.Second)
		b.n.set("u", "2", runtime.Running)
		b.after(10 * time.Second)
		assert.Equal(t, 2, b.n.ran(), "without AddPod")
	})
}

// PB-4: results are counted further after an update of the pod that does not change the
// probe.
func TestManager_UpdateKeepsCount(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.set("u", "1", runtime.Running)
		b.n.exit(1)
		b.AddPod(podOf("u", nil, nil, every(10, command("x"))))
		b.after(15 * time.Second)
		require.Equal(t, 2, b.n.ran())
		b.AddPod(podOf("u", nil, nil, every(10, command("x"))))
		b.after(10 * time.Second)
		assert.Equal(t, []string{"Liveness 1 failed"}, b.changes())
	})
}

// A timer that fires late does not run a probe that is running, is stopped or is not due.
func TestManager_LateTimer(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.set("u", "1", runtime.Running)
		ended := b.n.hang()
		b.AddPod(podOf("u", nil, withTimeout(60, every(60, command("x"))), nil))
		b.after(2 * time.Second)
		p := b.pods["u"].probes[key{"a", Readiness}]
		b.fire(p)
		assert.Equal(t, 1, b.n.ran(), "running")
		b.after(time.Minute)
		require.Len(t, ended, 1)
		require.ErrorIs(t, (<-ended).Err(), context.DeadlineExceeded)
		b.RemovePod("v")
		ran := b.n.ran()
		b.n.exit(0)
		b.after(5 * time.Minute)
		require.Greater(t, b.n.ran(), ran)
		ran = b.n.ran()
		b.fire(p)
		assert.Equal(t, ran, b.n.ran(), "not due")
		b.RemovePod("u")
		b.after(5 * time.Minute)
		b.fire(p)
		assert.Equal(t, ran, b.n.ran(), "stopped")
		assert.Error(t, b.Run(b.t.Context()), "Run was called twice")
		b.Drain() // no lock is held
	})
}

// The context of a run ends with it.
func TestManager_ReleasesContext(t *testing.T) {
	inBubble(t, func(b *bench) {
		var used context.Context
		b.n.with(func() {
			b.n.run = func(ctx context.Context, _ string, _ []string) (string, int, error) {
				used = ctx
				return "", 0, nil
			}
		})
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", nil, withTimeout(50, every(60, command("x"))), nil))
		b.after(2 * time.Second)
		require.ErrorIs(t, used.Err(), context.Canceled)
	})
}

// PB-2: a run that the end of Run cancels has no outcome.
func TestManager_EndOfRunHasNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.set("u", "1", runtime.Running)
		ended := n.hang()
		m, err := New(Config{PodCache: n, Execer: n, Recorder: n, Hooks: Hooks{Probed: func(ProbeRun) { t.Error("probed") }}})
		require.NoError(t, err)
		m.AddPod(podOf("u", nil, withTimeout(60, every(1, command("x"))), nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		time.Sleep(2 * time.Second)
		cancel()
		require.NoError(t, <-done)
		assert.Len(t, ended, 1)
		assert.Empty(t, n.events())
		time.Sleep(time.Minute)
		assert.Equal(t, 1, n.ran())
	})
}

// PB-4: a success has no event, a failure without a message has one, and a Manager
// without a Recorder has none.
func TestManager_Events(t *testing.T) {
	for _, code := range []int{0, 1} {
		inBubble(t, func(b *bench) {
			b.n.set("u", "1", runtime.Running)
			b.n.with(func() {
				b.n.run = func(context.Context, string, []string) (string, int, error) { return "", code, nil }
			})
			b.AddPod(podOf("u", nil, every(60, command("x")), nil))
			b.after(2 * time.Second)
			assert.Equal(t, 1, b.n.ran())
			assert.Len(t, b.n.events(), code)
		})
	}
	m, err := New(Config{PodCache: newNode()})
	require.NoError(t, err)
	spec := podOf("u", nil, nil, nil)
	assert.NotPanics(t, func() {
		m.event(&target{pod: spec, container: &spec.Spec.Containers[0]}, failed("no recorder"))
	})
}

// PB-3: a startup probe that has succeeded for another container starts no other probe.
func TestProbe_ShouldRun(t *testing.T) {
	p := &pod{probes: map[key]*probe{}}
	startup := &probe{key: key{"a", Startup}, pod: p, id: "1", result: runtime.ProbeSuccess}
	live := &probe{key: key{"a", Liveness}, pod: p, id: "1"}
	assert.True(t, live.shouldRun(), "no startup probe")
	p.probes[startup.key] = startup
	assert.True(t, live.shouldRun())
	live.id = "2"
	assert.False(t, live.shouldRun(), "another container")
	live.id, startup.result = "1", runtime.ProbeUnknown
	assert.False(t, live.shouldRun(), "not started")
	live.id, live.done, startup.result = "1", true, runtime.ProbeSuccess
	assert.False(t, live.shouldRun(), "its result is final")
	assert.True(t, startup.shouldRun())
	startup.done = true
	assert.False(t, startup.shouldRun())
}

// PB-2: offsets of like probes are spread over the whole period.
func TestPhaseOffset_IsSpread(t *testing.T) {
	buckets := make([]int, 10)
	for i := range 10_000 {
		offset := phaseOffset(types.UID(fmt.Sprint("pod-", i)), "app", Readiness)
		require.GreaterOrEqual(t, offset, 0.0)
		require.Less(t, offset, 1.0)
		buckets[int(offset*10)]++
	}
	for _, n := range buckets {
		assert.InDelta(t, 1000, n, 150)
	}
}

// PB-6: a container that has exited cannot be probed, and that is no event: its exit is
// observed a moment later.
func TestManager_ExitedContainerIsNotUnhealthy(t *testing.T) {
	for name, tc := range map[string]struct {
		exits  bool
		events int
	}{"it has exited": {true, 0}, "it runs": {false, 1}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				b.n.set("u", "1", runtime.Running)
				b.n.exit(1)
				b.AddPod(podOf("u", nil, every(10, command("check")), nil))
				b.after(0)
				for b.n.ran() == 0 {
					b.after(10 * time.Millisecond)
				}
				if tc.exits {
					b.n.set("u", "1", runtime.Exited)
				}
				b.after(time.Second)
				assert.Len(t, b.n.events(), tc.events)
			})
		})
	}
}
