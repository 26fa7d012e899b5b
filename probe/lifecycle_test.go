package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/clocktest"
	"github.com/sublet-dev/agent/runtime"
)

// PS-3: liveness and startup probes of a terminating pod stop, readiness probes continue.
func TestManager_StopLivenessAndStartup(t *testing.T) {
	inBubble(t, func(b *bench) {
		spec := podOf("u", nil, every(10, command("ready")), every(10, command("live")))
		b.n.set("u", "1", runtime.Running)
		b.AddPod(spec)
		b.after(5 * time.Second)
		b.changes()
		b.StopLivenessAndStartup("u")
		b.AddPod(spec)
		b.n.exit(1)
		b.after(time.Minute)
		assert.Equal(t, []string{"Readiness 1 failed"}, b.changes())
		assert.Equal(t, runtime.ProbeSuccess, b.Results("u")["1"].Liveness)
		b.RemovePod("u")
		before := b.n.ran()
		b.after(time.Minute)
		assert.Equal(t, before, b.n.ran())
		assert.Nil(t, b.Results("u"))
	})
}

// PB-4: that a container was stopped for its probe is known until it is started again.
func TestManager_ResultsOfExitedContainers(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.exit(1)
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", nil, every(10, command("ready")), every(10, command("live"))))
		b.after(time.Minute)
		require.Equal(t, runtime.ProbeFailure, b.Results("u")["1"].Liveness)
		b.n.set("u", "1", runtime.Exited)
		assert.True(t, b.Results("u")["1"].IsUnhealthy())
		b.after(time.Hour)
		assert.True(t, b.Results("u")["1"].IsUnhealthy())
		b.n.exit(0)
		b.n.set("u", "2", runtime.Running)
		b.after(time.Minute)
		assert.False(t, b.Results("u")["2"].IsUnhealthy())
		assert.NotContains(t, b.Results("u"), "1")
		b.n.set("u", "2", runtime.Exited)
		assert.NotContains(t, b.Results("u"), "2", "it was well")
	})
}

// PS-3: a pod that is added while it terminates.
func TestManager_StopBeforeAddPod(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.set("u", "1", runtime.Running)
		b.StopLivenessAndStartup("u")
		b.AddPod(podOf("u", nil, every(10, command("ready")), every(10, command("live"))))
		b.after(time.Minute)
		require.NotZero(t, b.n.ran())
		for _, r := range b.n.runs() {
			assert.Equal(t, []string{"ready"}, r.cmd)
		}
	})
}

// PS-3: a container that had not started when the termination began is never ready.
func TestManager_StopWhileStarting(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.exit(1)
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", every(10, command("x")), nil, nil))
		b.after(5 * time.Second)
		b.StopLivenessAndStartup("u")
		assert.Equal(t, runtime.ProbeResults{Startup: runtime.ProbeUnknown, Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}, b.Results("u")["1"])
	})
}

// PB-2: a cancelled run has no result, whatever its outcome is.
func TestManager_CancelledProbeHasNoResult(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.with(func() {
			b.n.run = func(ctx context.Context, _ string, _ []string) (string, int, error) {
				<-ctx.Done()
				return "", 1, nil
			}
		})
		p := every(10, command("x"))
		p.FailureThreshold, p.TimeoutSeconds = 1, 5
		for _, uid := range []types.UID{"u", "v"} {
			b.n.set(uid, "1", runtime.Running)
			b.AddPod(podOf(uid, nil, nil, p))
		}
		b.after(2 * time.Second)
		b.StopLivenessAndStartup("u")
		b.CleanupPods([]types.UID{"u"})
		b.after(time.Minute)
		assert.Empty(t, b.changes())
		assert.Empty(t, b.n.events())
		b.n.with(func() { assert.Zero(t, b.n.now) })
		assert.Nil(t, b.Results("v"))
	})
}

// savedStatus is a status with container 1.
func savedStatus(ready, started bool) corev1.PodStatus {
	return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: "a", ContainerID: "containerd://1", Ready: ready, Started: &started,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}}
}

// SL-3: results in the status of a previous process stay while the container runs.
func TestManager_Adopt(t *testing.T) {
	all := every(10, command("x"))
	for _, first := range []string{"adopt", "add"} {
		t.Run(first+" first", func(t *testing.T) {
			inBubble(t, func(b *bench) {
				b.n.set("u", "1", runtime.Running)
				b.after(time.Hour)
				if first == "adopt" {
					b.Adopt("u", savedStatus(true, true))
					assert.Equal(t, runtime.ProbeSuccess, b.Results("u")["1"].Readiness, "even before it is added")
					b.AddPod(podOf("u", all, all, all))
				} else {
					b.AddPod(podOf("u", all, all, all))
					b.Adopt("u", savedStatus(true, true))
				}
				well := runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}
				assert.Equal(t, well, b.Results("u")["1"])
				b.after(time.Minute)
				assert.Empty(t, b.changes(), "nothing changed")
				b.n.set("u", "2", runtime.Running)
				assert.Equal(t, runtime.ProbeResults{Startup: runtime.ProbeUnknown, Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}, b.Results("u")["2"])
				b.n.set("u", "1", runtime.Running)
				b.n.exit(1)
				b.after(time.Minute)
				assert.Equal(t, []string{"Readiness 1 failed", "Liveness 1 failed"}, sorted(b.changes()))
			})
		})
	}
	t.Run("not ready and not started", func(t *testing.T) {
		inBubble(t, func(b *bench) {
			b.n.set("u", "1", runtime.Running)
			b.Adopt("u", savedStatus(false, false))
			assert.Equal(t, runtime.ProbeResults{Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}, b.Results("u")["1"])
		})
	})
	t.Run("a probe has spoken since", func(t *testing.T) {
		inBubble(t, func(b *bench) {
			b.n.set("u", "1", runtime.Running)
			b.AddPod(podOf("u", nil, all, nil))
			b.after(5 * time.Second)
			b.Adopt("u", savedStatus(false, true))
			assert.Equal(t, runtime.ProbeSuccess, b.Results("u")["1"].Readiness)
		})
	})
	t.Run("by a runtime that tells no name", func(t *testing.T) {
		inBubble(t, func(b *bench) {
			b.n.set("u", "1", runtime.Running)
			st := savedStatus(true, true)
			st.ContainerStatuses[0].ContainerID = "1"
			b.Adopt("u", st)
			b.AddPod(podOf("u", nil, all, nil))
			assert.Equal(t, runtime.ProbeSuccess, b.Results("u")["1"].Readiness)
		})
	})
	t.Run("a container that had ended", func(t *testing.T) {
		inBubble(t, func(b *bench) {
			b.n.set("u", "1", runtime.Running)
			st := savedStatus(true, true)
			st.ContainerStatuses[0].State = corev1.ContainerState{}
			b.Adopt("u", st)
			assert.Empty(t, b.Results("u"))
		})
	})
	t.Run("one that is to start again although it exited with 0", func(t *testing.T) {
		inBubble(t, func(b *bench) {
			b.n.set("u", "1", runtime.Exited)
			st := savedStatus(false, false)
			st.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			last := &corev1.ContainerStateTerminated{ContainerID: "containerd://1"}
			st.ContainerStatuses[0].LastTerminationState.Terminated = last
			for name, unhealthy := range map[string]bool{"containerd://1": true, "containerd://0": false} {
				last.ContainerID = name
				b.Adopt("u", st)
				assert.Equal(t, unhealthy, b.Results("u")["1"].IsUnhealthy(), name)
			}
			last.ContainerID = "containerd://1"
			b.Adopt("u", st)
			b.AddPod(podOf("u", nil, nil, all))
			assert.True(t, b.Results("u")["1"].IsUnhealthy())
			b.n.set("u", "2", runtime.Running)
			assert.False(t, b.Results("u")["2"].IsUnhealthy())
			last.ExitCode = 1
			b.Adopt("u", st)
			b.n.set("u", "1", runtime.Exited)
			assert.False(t, b.Results("u")["1"].IsUnhealthy(), "its exit code says it")
		})
	})
	t.Run("another container", func(t *testing.T) {
		inBubble(t, func(b *bench) {
			b.n.set("u", "2", runtime.Running)
			b.Adopt("u", savedStatus(true, true))
			b.AddPod(podOf("u", nil, all, nil))
			assert.Equal(t, runtime.ProbeFailure, b.Results("u")["2"].Readiness)
		})
	})
}

func sorted(s []string) []string {
	if len(s) == 2 && s[0] > s[1] {
		s[0], s[1] = s[1], s[0]
	}
	if len(s) == 2 { // a readiness probe comes first
		s[0], s[1] = s[1], s[0]
	}
	return s
}

// expectedResults computes the results to deliver for a container from all outcomes of
// its probe.
func expectedResults(k ProbeType, p *corev1.Probe, results []runtime.ProbeResult) []runtime.ProbeResult {
	var delivered []runtime.ProbeResult
	now := initial(k)
	for i := range results {
		run, want := int32(0), p.SuccessThreshold
		for j := i; j >= 0 && results[j] == results[i]; j-- {
			run++
		}
		if results[i] == runtime.ProbeFailure {
			want = p.FailureThreshold
		}
		if run < want || results[i] == now {
			continue
		}
		now = results[i]
		delivered = append(delivered, now)
		if k == Startup || k == Liveness && now == runtime.ProbeFailure {
			break
		}
	}
	return delivered
}

// PB-3, PB-4: with random outcomes and restarts, the delivered results are those that
// follow from the outcomes of each container.
func TestManager_RandomSequences(t *testing.T) {
	for seed := range uint64(150) {
		kind := ProbeType(seed % 3)
		inBubble(t, func(b *bench) {
			rnd := rand.New(rand.NewPCG(seed, 5)) // guarded by b.n.mu
			results := map[string][]runtime.ProbeResult{}
			bias := 3
			b.n.with(func() {
				b.n.run = func(ctx context.Context, id string, _ []string) (string, int, error) {
					b.n.mu.Lock()
					roll := rnd.IntN(10)
					defer b.n.mu.Unlock()
					switch {
					case roll < bias:
						results[id] = append(results[id], runtime.ProbeFailure)
						return "", 1, nil
					case roll == 8:
						return "", 0, errors.New("cannot be run")
					case roll == 9 && bias > 0:
						b.n.mu.Unlock()
						<-ctx.Done()
						b.n.mu.Lock()
						results[id] = append(results[id], runtime.ProbeFailure)
						return "", 0, ctx.Err()
					}
					results[id] = append(results[id], runtime.ProbeSuccess)
					return "", 0, nil
				}
			})
			p := every(1+int32(rnd.IntN(3)), command("x"))
			p.FailureThreshold = 1 + int32(rnd.IntN(4))
			p.TimeoutSeconds = 1 + int32(rnd.IntN(3))
			if kind == Readiness {
				p.SuccessThreshold = 1 + int32(rnd.IntN(3))
			}
			specs := [3]*corev1.Probe{}
			specs[kind] = p
			spec := podOf("u", specs[Startup], specs[Readiness], specs[Liveness])
			delivered := map[string][]runtime.ProbeResult{}
			drain := func() {
				for _, c := range b.Drain() {
					require.Equal(t, kind, c.Type)
					delivered[c.ContainerID] = append(delivered[c.ContainerID], c.Result)
				}
			}
			for i := range 5 {
				b.n.set("u", fmt.Sprint(i), runtime.Running)
				b.n.with(func() { bias = rnd.IntN(9) })
				for range 20 {
					if i%2 == 0 { // otherwise the Manager finds it by itself
						b.AddPod(spec)
					}
					b.after(777 * time.Millisecond)
					drain()
				}
				b.n.set("u", fmt.Sprint(i), runtime.Exited)
				b.after(10 * time.Second)
				drain()
			}
			b.n.mu.Lock()
			defer b.n.mu.Unlock()
			for id, rs := range results {
				require.Equal(t, expectedResults(kind, p, rs), delivered[id], "seed %d, container %s: %v", seed, id, rs)
			}
		})
	}
}

// AG-10: setting the wall clock does not change initial delay and period of a container
// that was observed running.
func TestManager_AfterClockWasSet(t *testing.T) {
	const step = 3 * time.Hour
	now := time.Now()
	for name, started := range map[string]time.Time{
		"started a moment ago": now.Add(-time.Second),
		"started hours ago":    now.Add(-time.Hour),
		"started in the future, before the clock was set back": now.Add(step),
	} {
		spec := every(10, command("x"))
		spec.InitialDelaySeconds = 5
		b := &probe{key: key{"a", Liveness}, spec: spec, pod: &pod{}}
		b.restart(&runtime.Container{ID: "1", Started: started.Round(0)}, now)
		late := clocktest.BeforeSetBack(t, now.Add(time.Minute), -step)
		assert.LessOrEqual(t, b.due.Sub(now), 5*time.Second, name)
		due := following(b.due, late, 10*time.Second)
		assert.Greater(t, due.Sub(late), time.Duration(0), name)
		assert.LessOrEqual(t, due.Sub(late), 10*time.Second, name)
	}
}

// AG-9: a panic in a handler or a hook does not change the result.
func TestManager_HandlerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		var well atomic.Bool
		n.run = func(context.Context, string, []string) (string, int, error) {
			if !well.Load() {
				panic("exec")
			}
			return "", 0, nil
		}
		var probed atomic.Int32
		m, err := New(Config{PodCache: n, Execer: n, Recorder: panickyRecorder{}, Hooks: Hooks{Probed: func(ProbeRun) { probed.Add(1); panic("hook") }}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		n.set("u", "1", runtime.Running)
		m.AddPod(podOf("u", nil, every(10, command("x")), nil))
		time.Sleep(time.Minute)
		assert.Greater(t, probed.Load(), int32(3), "it goes on being run")
		assert.Equal(t, runtime.ProbeFailure, m.Results("u")["1"].Readiness)
		well.Store(true)
		time.Sleep(time.Minute)
		assert.Equal(t, runtime.ProbeSuccess, m.Results("u")["1"].Readiness)
		cancel()
		require.NoError(t, <-done)
	})
}

type panickyRecorder struct{}

func (panickyRecorder) Record(*corev1.Event) { panic("recorder") }
