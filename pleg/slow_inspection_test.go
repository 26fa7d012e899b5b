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

	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

// PL-6: inspections run in parallel up to the limit, one at a time per pod.
func TestGenerator_MaxParallel(t *testing.T) {
	rt := newFakeRuntime()
	rt.inspectDelay = func(types.UID) time.Duration { return 100 * time.Millisecond }
	for i := range 100 {
		rt.set(newTestPod(types.UID(fmt.Sprint(i)), runtime.Running), false)
	}
	inBubble(t, rt, Config{MaxParallel: 7}, func(env *testEnv) {
		env.after(1400 * time.Millisecond)
		assert.Len(t, env.cache.Pods(), 98)
		for i := range 100 {
			env.RequestInspection(types.UID(fmt.Sprint(i % 3)))
		}
		env.after(time.Minute)
		rt.with(func() { assert.Equal(t, 7, rt.max) })
	})
}

// changeAll changes all pods but the hung ones and returns the time until the last
// event.
func changeAll(env *testEnv, n int, s runtime.ContainerState) time.Duration {
	startTime := time.Now()
	for i := range n {
		env.rt.set(newTestPod(types.UID(fmt.Sprint(i)), s), true)
	}
	events := 0
	for events < n {
		select {
		case <-env.Notify():
			events += len(env.Drain())
		case <-time.After(time.Minute):
			env.t.Fatalf("%d of %d events emitted", events, n)
		}
	}
	return time.Since(startTime)
}

// PL-6: pods that hang delay others only until their inspections are known to be
// slow, and not at all afterwards.
func TestGenerator_HungPodsDelayNoOther(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long with the race detector, and is the same for all users")
	}
	const n = 300
	for _, hung := range []int{1, 10, 50} {
		t.Run(fmt.Sprint(hung), func(t *testing.T) {
			rt := newFakeRuntime()
			for i := range n {
				rt.set(newTestPod(types.UID(fmt.Sprint(i)), runtime.Created), false)
			}
			rt.inspectDelay = func(types.UID) time.Duration { return 10 * time.Millisecond }
			inBubble(t, rt, Config{}, func(env *testEnv) {
				env.after(time.Minute)
				env.Drain()
				baseline := changeAll(env, n, runtime.Running)

				rt.with(func() {
					rt.inspectDelay = func(uid types.UID) time.Duration {
						if uid[0] == 'h' {
							return hang
						}
						return 10 * time.Millisecond
					}
				})
				for i := range hung {
					rt.set(newTestPod(types.UID(fmt.Sprint("h", i)), runtime.Running), true)
				}
				env.after(0)
				first := changeAll(env, n, runtime.Exited)
				batches := (hung + 9) / 10 // each occupies all slots for a second
				assert.LessOrEqual(t, first.Seconds(), baseline.Seconds()*1.2+float64(batches))

				env.after(20 * time.Minute)
				assert.Len(t, env.InspectionErrors(), hung)
				require.NoError(t, env.Healthy())
				for i := range 100 { // inspections of hung pods begin meanwhile
					env.after(777 * time.Millisecond)
					s := runtime.Running + runtime.ContainerState(i%2)
					assert.LessOrEqual(t, changeAll(env, n, s), baseline*12/10)
				}
				assert.Empty(t, env.Drain())
			})
		})
	}
}

// A listed pod is uninspected until an inspection has succeeded, even if the first
// ones hang.
func TestGenerator_Uninspected(t *testing.T) {
	rt := newFakeRuntime()
	hangs := true
	rt.inspectDelay = func(uid types.UID) time.Duration {
		if uid == "slow" && hangs {
			return time.Hour
		}
		return time.Second
	}
	rt.set(stoppedTestPod("slow"), false)
	rt.set(stoppedTestPod("quick"), false)
	idle, err := New(Config{Runtime: rt, Cache: new(podcache.Cache)})
	require.NoError(t, err)
	assert.Empty(t, idle.Uninspected(), "no relist yet")
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(10 * time.Millisecond)
		assert.ElementsMatch(t, []types.UID{"slow", "quick"}, env.Uninspected())
		assert.True(t, env.IsRunning("quick"), "it may run")
		assert.False(t, env.IsRunning("unknown"))
		env.after(5 * time.Minute)
		assert.Equal(t, []types.UID{"slow"}, env.Uninspected(), "its inspection has failed")
		assert.True(t, env.IsRunning("slow"))
		assert.False(t, env.IsRunning("quick"))
		rt.with(func() { hangs = false })
		env.after(time.Hour)
		assert.False(t, env.IsRunning("slow"))
	})
}

// SL-3: a pod runs as long as it has a ready sandbox or a container that may run.
func TestGenerator_IsRunning(t *testing.T) {
	rt := newFakeRuntime()
	rt.set(newTestPod("sandbox"), false)
	container := newTestPod("container", runtime.Running)
	container.Sandboxes[0].State = runtime.SandboxNotReady
	rt.set(container, false)
	rt.set(stoppedTestPod("stopped"), false)
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(time.Minute)
		assert.True(t, env.IsRunning("sandbox"))
		assert.True(t, env.IsRunning("container"))
		assert.False(t, env.IsRunning("stopped"))
		assert.False(t, env.IsRunning("absent"))
		rt.set(stoppedTestPod("sandbox"), true)
		rt.set(runtime.Pod{UID: "container"}, true)
		env.after(time.Minute)
		assert.False(t, env.IsRunning("sandbox"))
		assert.False(t, env.IsRunning("container"))
	})
}

// stoppedTestPod returns a pod of which nothing runs.
func stoppedTestPod(uid types.UID) runtime.Pod {
	p := newTestPod(uid, runtime.Exited)
	p.Sandboxes[0].State = runtime.SandboxNotReady
	return p
}

// PL-8: a single pod that hangs does not make the Generator unhealthy.
func TestGenerator_SlowPodDoesNotFailHealth(t *testing.T) {
	rt := newFakeRuntime()
	rt.inspectDelay = func(uid types.UID) time.Duration {
		if uid == "hung" {
			return hang
		}
		return 0
	}
	rt.set(newTestPod("hung", runtime.Running), false)
	rt.set(newTestPod("quick", runtime.Running), false)
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(2 * time.Second)
		require.Len(t, env.InspectionErrors(), 1)
		assert.Equal(t, types.UID("hung"), env.InspectionErrors()[0].UID)
		require.ErrorContains(t, env.InspectionErrors()[0], "inspect pod hung: no answer yet")
		env.after(10 * time.Minute)
		require.NoError(t, env.Healthy())
		require.ErrorIs(t, env.InspectionErrors()[0], context.DeadlineExceeded)
		rt.with(func() { rt.inspectDelay = nil })
		env.after(2 * time.Minute)
		assert.Empty(t, env.InspectionErrors())
		assert.Len(t, env.eventTypes(), 4)
	})
}

// PL-8: Healthy reports a runtime that hangs, also while an event stream is open and
// the next relist would be minutes away.
func TestHealthy_HungRuntime(t *testing.T) {
	rt := newFakeRuntime()
	rt.set(newTestPod("u", runtime.Running), false)
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(20 * time.Second)
		rt.with(func() {
			rt.listDelay = hang
			rt.inspectDelay = func(types.UID) time.Duration { return hang }
		})
		env.RequestInspection("u")
		env.after(2 * time.Minute)
		require.NoError(t, env.Healthy())
		env.after(2 * time.Minute)
		err := env.Healthy()
		require.ErrorContains(t, err, "list pods")
		require.ErrorContains(t, err, "no relist for 3m")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		rt.with(func() { rt.listDelay, rt.inspectDelay = 0, nil })
		env.after(2 * time.Minute)
		require.NoError(t, env.Healthy())
	})
}

// PL-8: Healthy reports a relist that has not returned.
func TestHealthy_HungRelist(t *testing.T) {
	rt := newFakeRuntime()
	rt.listDelay = hang
	inBubble(t, rt, Config{Timeout: hang}, func(env *testEnv) {
		env.after(3*time.Minute - 1)
		require.NoError(t, env.Healthy())
		env.after(1)
		require.EqualError(t, env.Healthy(), "no relist for 3m0s: listing pods has not returned since 3m0s")
	})
}

// PL-8: Healthy reports a runtime that only returns errors.
func TestHealthy_FailingRuntime(t *testing.T) {
	rt := newFakeRuntime()
	errDown := errors.New("ListPodSandbox: connection refused")
	rt.listErr = errDown
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(3 * time.Minute)
		require.ErrorIs(t, env.Healthy(), errDown)
		rt.with(func() { rt.listErr = nil })
		env.after(time.Second)
		require.NoError(t, env.Healthy())
	})
}

// PL-8: an unavailable runtime is listed every second; its failure is logged once a
// minute, and its recovery once.
func TestGenerator_LogsPersistingFailureOncePerMinute(t *testing.T) {
	rt := newFakeRuntime()
	rt.listErr = errors.New("connection refused")
	var log bytes.Buffer
	inBubble(t, rt, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(env *testEnv) {
		env.after(120*time.Second + 500*time.Millisecond)
		rt.with(func() { rt.listErr = nil })
		env.after(10 * time.Second)
		rt.with(func() { rt.listErr = errors.New("connection reset") })
		env.RequestRelist()
		env.after(time.Second)
	})
	require.Equal(t, 3+1, strings.Count(log.String(), "relist failed"))
	require.Equal(t, 1, strings.Count(log.String(), "relist recovered"))
}

// PL-1: a relist that takes a minute delays no inspection, and its outdated list
// does not replace their results.
func TestGenerator_SlowRelist(t *testing.T) {
	rt := newFakeRuntime()
	rt.set(newTestPod("u", runtime.Running), false)
	inBubble(t, rt, Config{Timeout: 2 * time.Minute}, func(env *testEnv) {
		env.after(10 * time.Second)
		env.Drain()
		rt.with(func() { rt.listDelay = time.Minute })
		env.RequestRelist()
		env.after(time.Second)
		rt.set(newTestPod("u", runtime.Exited), true)
		rt.set(newTestPod("v", runtime.Running), true)
		env.after(0)
		assert.ElementsMatch(t, []EventType{ContainerDied, ContainerStarted, ContainerStarted}, env.eventTypes())
		env.after(5 * time.Minute)
		assert.Empty(t, env.eventTypes())
		p, _ := env.cache.Get("u")
		assert.Equal(t, runtime.Exited, p.Containers[0].State)
		_, ok := env.cache.Get("v")
		assert.True(t, ok)
	})
}

// PL-5: a runtime whose relists contradict its inspections is not inspected every
// second indefinitely.
func TestGenerator_RelistContradictsInspections(t *testing.T) {
	rt := newFakeRuntime()
	rt.watchErr = runtime.ErrUnsupported
	rt.set(newTestPod("u", runtime.Unknown), false)
	rt.set(newTestPod("v", runtime.Running), false)
	rt.listed = func([]runtime.Pod) []runtime.Pod { return []runtime.Pod{newTestPod("u", runtime.Running)} }
	inBubble(t, rt, Config{}, func(env *testEnv) {
		env.after(time.Second)
		env.RequestInspection("v")
		env.after(time.Hour)
		assert.Less(t, rt.inspectionsOf("u"), 75)
		assert.Less(t, rt.inspectionsOf("v"), 75)
		rt.with(func() { rt.listed = nil })
		rt.set(newTestPod("u", runtime.Exited), false)
		env.Drain()
		env.after(time.Second)
		assert.Equal(t, []EventType{ContainerDied}, env.eventTypes())
	})
}
