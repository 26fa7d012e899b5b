package probe

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestNew_Requires(t *testing.T) {
	_, err := New(Config{})
	require.ErrorContains(t, err, "Config.PodCache")
}

func every(seconds int32, h corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: h, PeriodSeconds: seconds, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
}

// PB-3: the results before the first run.
func TestManager_InitialResults(t *testing.T) {
	all := every(10, command("x"))
	for _, tt := range []struct {
		name                         string
		startup, readiness, liveness *corev1.Probe
		want                         runtime.ProbeResults
	}{
		{"no probes", nil, nil, nil, runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}},
		{"readiness", nil, all, nil, runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}},
		{"liveness", nil, nil, all, runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}},
		{"startup", all, nil, nil, runtime.ProbeResults{Startup: runtime.ProbeUnknown, Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				b.n.with(func() {
					b.n.run = func(ctx context.Context, _ string, _ []string) (string, int, error) {
						<-ctx.Done()
						return "", 0, ctx.Err()
					}
				})
				b.AddPod(podOf("u", tt.startup, tt.readiness, tt.liveness))
				assert.Empty(t, b.Results("u"), "nothing runs")
				b.n.set("u", "1", runtime.Running)
				assert.Equal(t, runtime.PodProbeResults{"1": tt.want}, b.Results("u"))
				b.n.set("u", "1", runtime.Exited)
				assert.Empty(t, b.Results("u"))
				assert.Nil(t, b.Results("unknown"))
				assert.Empty(t, b.changes())
			})
		})
	}
}

// PB-4
func TestManager_Thresholds(t *testing.T) {
	inBubble(t, func(b *bench) {
		p := every(10, command("x"))
		p.SuccessThreshold = 2
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", nil, p, nil))
		b.after(2 * time.Second)
		assert.Equal(t, 1, b.n.ran())
		assert.Empty(t, b.changes(), "one success is not two")
		b.after(10 * time.Second)
		assert.Equal(t, []string{"Readiness 1 passed"}, b.changes())
		b.after(time.Minute)
		assert.Empty(t, b.changes(), "told once")

		b.n.exit(1)
		b.after(20 * time.Second)
		assert.Empty(t, b.changes(), "two failures are not three")
		b.n.exit(0)
		b.after(10 * time.Second)
		b.n.exit(1)
		b.after(20 * time.Second)
		assert.Empty(t, b.changes(), "they have to be in a row")
		b.after(10 * time.Second)
		assert.Equal(t, []string{"Readiness 1 failed"}, b.changes())
		assert.Equal(t, runtime.ProbeFailure, b.Results("u")["1"].Readiness)
	})
}

// PB-3, PB-4: the other probes start as soon as the startup probe has succeeded.
func TestManager_StartupProbeFirst(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.with(func() {
			b.n.run = func(_ context.Context, _ string, cmd []string) (string, int, error) {
				if cmd[0] == "startup" && b.n.ran() < 5 {
					return "", 1, nil
				}
				return "", 0, nil
			}
		})
		startup := every(10, command("startup"))
		startup.FailureThreshold = 100
		startup.TerminationGracePeriodSeconds = new(int64(5))
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", startup, every(60, command("ready")), every(60, command("live"))))
		b.after(39 * time.Second)
		for _, e := range b.n.runs() {
			assert.Equal(t, []string{"startup"}, e.cmd)
		}
		b.after(3 * time.Second)
		delivered := b.Drain()
		require.Len(t, delivered, 2)
		assert.Equal(t, ResultChange{UID: "u", Container: "a", ContainerID: "1", Type: Startup, Result: runtime.ProbeSuccess}, delivered[0])
		assert.Equal(t, ResultChange{UID: "u", Container: "a", ContainerID: "1", Type: Readiness, Result: runtime.ProbeSuccess}, delivered[1])
		assert.Equal(t, runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}, b.Results("u")["1"])
		assert.Equal(t, 7, b.n.ran(), "five for startup, one for each of the others")
		b.after(10 * time.Minute)
		startups := 0
		for _, e := range b.n.runs() {
			if e.cmd[0] == "startup" {
				startups++
			}
		}
		assert.Equal(t, 5, startups, "a container starts once")
	})
}

// PB-3: the startup probe runs for each restarted container.
func TestManager_RestartedContainerRunsStartupProbe(t *testing.T) {
	inBubble(t, func(b *bench) {
		spec := podOf("u", every(10, command("startup")), every(10, command("ready")), every(10, command("live")))
		for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
			b.n.exit(0)
			b.n.set("u", id, runtime.Running)
			before := b.n.ran()
			b.AddPod(spec)
			b.after(25 * time.Second)
			runs := b.n.runs()[before:]
			require.Greater(t, len(runs), 3)
			assert.Equal(t, []string{"startup"}, runs[0].cmd)
			for _, r := range runs[1:] {
				assert.NotEqual(t, []string{"startup"}, r.cmd)
				assert.Equal(t, id, r.id)
			}
		}
	})
}

// PB-3: a changed probe counts from zero, with its new thresholds.
func TestManager_ChangedProbe(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.exit(1)
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", nil, nil, every(10, command("x"))))
		b.after(12 * time.Second)
		p := every(10, command("x"))
		p.FailureThreshold = 2
		b.AddPod(podOf("u", nil, nil, p))
		b.AddPod(podOf("u", nil, nil, p.DeepCopy()))
		b.after(10 * time.Second)
		assert.Empty(t, b.changes(), "the failures before were counted otherwise")
		b.after(10 * time.Second)
		assert.Equal(t, []string{"Liveness 1 failed"}, b.changes())
		b.AddPod(podOf("u", nil, nil, nil))
		assert.Equal(t, runtime.ProbeSuccess, b.Results("u")["1"].Liveness, "there is no such probe any more")
	})
}

// PB-1: of the init containers only sidecars are probed.
func TestManager_ProbesSidecarsOnly(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.exit(1)
		b.n.set("u", "1", runtime.Running)
		spec := podOf("u", nil, nil, every(10, command("x")))
		spec.Spec.InitContainers, spec.Spec.Containers = spec.Spec.Containers, nil
		b.AddPod(spec)
		b.after(time.Minute)
		assert.Zero(t, b.n.ran())
		always := corev1.ContainerRestartPolicyAlways
		spec = spec.DeepCopy()
		spec.Spec.InitContainers[0].RestartPolicy = &always
		b.AddPod(spec)
		b.after(time.Minute)
		assert.Equal(t, []string{"Liveness 1 failed"}, b.changes())
		assert.Equal(t, "spec.initContainers{a}", b.n.events()[0].InvolvedObject.FieldPath)
	})
}

// PB-4: one liveness failure is delivered per container; a restarted container is probed
// again.
func TestManager_RestartedContainerAfterLivenessFailure(t *testing.T) {
	inBubble(t, func(b *bench) {
		live := every(10, command("live"))
		live.FailureThreshold = 2
		live.TerminationGracePeriodSeconds = new(int64(7))
		spec := podOf("u", nil, every(10, command("ready")), live)
		b.n.set("u", "1", runtime.Running)
		b.AddPod(spec)
		b.after(2 * time.Second)
		assert.Equal(t, []string{"Readiness 1 passed"}, b.changes())

		b.n.with(func() {
			b.n.run = func(_ context.Context, _ string, cmd []string) (string, int, error) {
				if cmd[0] == "live" {
					return " it hangs \n", 3, nil
				}
				return "", 0, nil
			}
		})
		b.after(20 * time.Second)
		changes := b.Drain()
		require.Len(t, changes, 1)
		grace := 7 * time.Second
		assert.Equal(t, ResultChange{
			UID: "u", Container: "a", ContainerID: "1", Type: Liveness, Result: runtime.ProbeFailure,
			Message: "exit code 3: it hangs", GracePeriod: &grace,
		}, changes[0])
		assert.Equal(t, runtime.ProbeFailure, b.Results("u")["1"].Liveness)
		b.after(5 * time.Minute)
		assert.Empty(t, b.changes())

		b.n.exit(0)
		b.n.set("u", "2", runtime.Running)
		assert.Equal(t, runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}, b.Results("u")["2"])
		before := b.n.ran()
		b.AddPod(spec)
		b.after(time.Second)
		assert.Equal(t, before+2, b.n.ran(), "probed when it is seen, not a period later")
		assert.Equal(t, []string{"Readiness 2 passed"}, b.changes())
	})
}

// PB-1: a container is found within a period without AddPod.
func TestManager_FindsContainerWithoutAddPod(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.AddPod(podOf("u", nil, every(10, command("x")), nil))
		b.after(time.Hour)
		assert.Zero(t, b.n.ran())
		b.n.set("u", "1", runtime.Running)
		b.after(12 * time.Second)
		assert.Equal(t, []string{"Readiness 1 passed"}, b.changes())
	})
}

// PB-1: initialDelaySeconds counts from the start of the container.
func TestManager_InitialDelay(t *testing.T) {
	inBubble(t, func(b *bench) {
		p := every(10, command("x"))
		p.InitialDelaySeconds = 30
		b.n.set("u", "1", runtime.Running)
		b.after(5 * time.Second)
		b.AddPod(podOf("u", nil, p, nil))
		b.after(25*time.Second - 1)
		assert.Zero(t, b.n.ran())
		b.after(time.Second + 1)
		assert.Equal(t, 1, b.n.ran())
	})
}

// PB-2: a handler that hangs is cancelled at its timeout and counts as a failure. The
// schedule continues.
func TestManager_HandlerHangs(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.with(func() {
			b.n.run = func(ctx context.Context, _ string, _ []string) (string, int, error) {
				<-ctx.Done()
				return "", 0, fmt.Errorf("ExecSync: %w", ctx.Err())
			}
		})
		p := every(2, command("x"))
		p.TimeoutSeconds = 5
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", nil, nil, p))
		b.after(20 * time.Second)
		assert.Equal(t, []string{"Liveness 1 failed"}, b.changes())
		runs := b.n.runs()
		require.Len(t, runs, 3)
		assert.Equal(t, 6*time.Second, runs[1].at.Sub(runs[0].at), "the beats that it slept through are left out")
		b.n.with(func() { assert.Equal(t, 1, b.n.max) })
		assert.Contains(t, b.n.events()[0].Message, "did not end within 5s")
		assert.Equal(t, "spec.containers{a}", b.n.events()[0].InvolvedObject.FieldPath)
	})
}

// PB-1: a probe that cannot run does not change the result.
func TestManager_ProbeCannotRun(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.n.with(func() {
			b.n.run = func(context.Context, string, []string) (string, int, error) {
				return "", 0, errors.New("no such binary")
			}
		})
		b.n.set("u", "1", runtime.Running)
		b.AddPod(podOf("u", nil, nil, every(1, command("x"))))
		b.after(time.Minute)
		assert.Empty(t, b.changes())
		require.NotEmpty(t, b.n.events())
		assert.Equal(t, "Liveness probe could not be run: no such binary", b.n.events()[0].Message)
	})
}

// PB-2: probes that start at the same time do not run at the same time, and do not drift.
func TestManager_SpreadsProbes(t *testing.T) {
	inBubble(t, func(b *bench) {
		const n = 1000
		for i := range n {
			uid := types.UID(fmt.Sprintf("5d3e9c1e-0000-0000-0000-%012d", i))
			b.n.set(uid, fmt.Sprint(i), runtime.Running)
		}
		b.after(time.Hour) // no agent ran
		for i := range n {
			uid := types.UID(fmt.Sprintf("5d3e9c1e-0000-0000-0000-%012d", i))
			b.AddPod(podOf(uid, nil, nil, every(10, command("x"))))
		}
		began := time.Now()
		b.after(time.Minute)
		assert.Len(t, b.n.runs(), 6*n)
		inSecond := map[int]int{}
		last := map[string]time.Time{}
		for _, e := range b.n.runs() {
			inSecond[int(e.at.Sub(began)/time.Second)]++
			if at, ok := last[e.id]; ok {
				assert.Equal(t, 10*time.Second, e.at.Sub(at))
			}
			last[e.id] = e.at
		}
		for s, k := range inSecond {
			assert.InDelta(t, n/10, k, n/25, "in second %d", s)
		}
	})
}

// PB-2: a container that has just started is probed within a second after its delay.
func TestFirst_Spread(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, tt := range []struct {
		name               string
		period, delay      int32
		age, fewest, mostA time.Duration
	}{
		{"just started", 10, 0, 0, 0, time.Second},
		{"short period", 1, 0, 0, 0, time.Second},
		{"delayed", 10, 5, 0, 5 * time.Second, 6 * time.Second},
		{"part of the delay is over", 10, 5, 3 * time.Second, 2 * time.Second, 3 * time.Second},
		{"running for long", 10, 5, time.Hour, 0, 10 * time.Second},
		{"no defaults given", 0, 0, 5 * time.Second, 0, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := &corev1.Probe{PeriodSeconds: tt.period, InitialDelaySeconds: tt.delay}
			now := start.Add(tt.age)
			for _, share := range []float64{0, 0.5, 0.999} {
				wait := first(spec, start, now, share).Sub(now)
				assert.GreaterOrEqual(t, wait, tt.fewest)
				assert.Less(t, wait, tt.mostA)
			}
		})
	}
}

func TestFollowing_SkipsMissedTimes(t *testing.T) {
	due := time.Unix(1000, 0)
	for _, tt := range []struct{ now, want int32 }{
		{0, 10},
		{9, 10},
		{10, 20},
		{11, 20},
		{35, 40},
	} {
		assert.Equal(t, due.Add(seconds(tt.want)), following(due, due.Add(seconds(tt.now)), seconds(10)))
	}
}

// PB-4: a slow reader gets the latest result of each probe once.
func TestManager_MergesUndeliveredChanges(t *testing.T) {
	inBubble(t, func(b *bench) {
		p := every(1, command("x"))
		p.FailureThreshold = 1
		b.n.set("u", "1", runtime.Running)
		b.n.set("v", "2", runtime.Running)
		b.AddPod(podOf("u", nil, p, nil))
		b.AddPod(podOf("v", nil, p, nil))
		for i := range 50 {
			b.n.exit(i % 2)
			b.after(time.Second)
		}
		assert.ElementsMatch(t, []string{"Readiness 1 failed", "Readiness 2 failed"}, b.changes())
		b.n.exit(0)
		b.after(time.Second)
		b.RemovePod("u")
		assert.Equal(t, []string{"Readiness 2 passed"}, b.changes(), "nothing is told of a pod that is gone")
	})
}

// PB-2: probes run only during Run.
func TestManager_OutsideOfRun(t *testing.T) {
	n := newNode()
	m, err := New(Config{PodCache: n, Execer: n})
	require.NoError(t, err)
	n.set("u", "1", runtime.Running)
	m.AddPod(podOf("u", nil, every(1, command("x")), nil))
	assert.Nil(t, m.pods["u"].probes[key{"a", Readiness}].timer)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, m.Run(ctx))
	m.AddPod(podOf("u", nil, every(1, command("x")), nil))
	require.Error(t, m.Run(ctx), "a second Run")
	m.AddPod(podOf("v", nil, every(1, command("x")), nil))
	assert.Nil(t, m.pods["v"].probes[key{"a", Readiness}].timer)
	assert.Zero(t, n.ran())
}

func Example() {
	var cache podcache.Cache
	n := newNode() // in place of a runtime that runs commands in containers
	m, err := New(Config{PodCache: &cache, Execer: n})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()

	cache.Set("uid-1", runtime.Pod{UID: "uid-1", Containers: []runtime.Container{
		{ID: "c1", Name: "a", State: runtime.Running},
	}}, nil, time.Now())
	m.AddPod(podOf("uid-1", nil, every(1, command("/bin/ready")), nil))
	<-m.Notify()
	for _, c := range m.Drain() {
		fmt.Println(c.UID, c.Container, c.Type, c.Result == runtime.ProbeSuccess)
	}
	cancel()
	fmt.Println(<-done)
	// Output:
	// uid-1 a Readiness true
	// <nil>
}
