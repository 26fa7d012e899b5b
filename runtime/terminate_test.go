package runtime_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

func hook(seconds int64) tweak {
	return func(c *corev1.Container) {
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}}
	}
}

func stages(stops []runtime.ContainerStop) []string {
	var out []string
	for _, s := range stops {
		out = append(out, fmt.Sprintf("%d %s", s.Stage, s.ID))
	}
	return out
}

// RT-6, RT-9
func TestPlanTermination(t *testing.T) {
	pod := newPod(always, sidecarC("s"), initC("i"), sidecarC("z"), regular("a", hook(5)), regular("b"), ephemeralC("debug"))
	all := newView(ready(0), running("s"), exited("i", 0), running("z"), running("a"), running("b"), running("debug"))
	grace := runtime.Termination{GracePeriod: 20 * time.Second}

	t.Run("regular ones at once, then sidecars in reverse order", func(t *testing.T) {
		stops := runtime.PlanTermination(pod, all.Pod, grace, testTime)
		assert.Equal(t, []string{"0 debug#0", "0 b#0", "0 a#0", "1 z#0", "2 s#0"}, stages(stops))
		for _, s := range stops {
			assert.Equal(t, testTime.Add(20*time.Second), s.Deadline)
			assert.Equal(t, s.ID == "a#0", s.PreStop != nil, s.ID)
			assert.False(t, s.Forced)
		}
	})
	t.Run("a sidecar gets what is left, and at least the minimum", func(t *testing.T) {
		stops := runtime.PlanTermination(pod, all.Pod, grace, testTime)
		last := stops[len(stops)-1]
		assert.Equal(t, 15*time.Second, last.RemainingGracePeriod(testTime.Add(5*time.Second)))
		assert.Equal(t, time.Second, last.RemainingGracePeriod(testTime.Add(time.Minute)))
		assert.Equal(t, 2*time.Second, last.StopPeriod(testTime.Add(time.Minute), 20*time.Second))
		assert.Equal(t, time.Second, last.StopPeriod(testTime.Add(time.Minute), time.Second), "that of the pod is shorter itself")
	})
	t.Run("at least a second for a hook, and two after the stop signal", func(t *testing.T) {
		stops := runtime.PlanTermination(pod, all.Pod, runtime.Termination{GracePeriod: time.Millisecond}, testTime)
		assert.Equal(t, testTime.Add(time.Second), stops[0].Deadline)
		assert.Equal(t, time.Second, stops[0].RemainingGracePeriod(testTime))
		stops = runtime.PlanTermination(pod, all.Pod, runtime.Termination{GracePeriod: -5}, testTime)
		assert.Equal(t, testTime.Add(time.Second), stops[0].Deadline)
		assert.Equal(t, time.Second, stops[0].RemainingGracePeriod(testTime))
	})
	t.Run("a hook is the spec's as it is now", func(t *testing.T) {
		previous := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 60}}
		observed := newView(ready(0), running("b", func(c *runtime.Container) { c.PreStop = previous }), running("x", func(c *runtime.Container) { c.PreStop = previous }))
		for _, s := range runtime.PlanTermination(pod, observed.Pod, grace, testTime) {
			assert.Equal(t, s.Container == "x", s.PreStop != nil, "only who is not in the spec any more has the one it carries: %s", s.ID)
		}
	})
	t.Run("forced: no hook and no time", func(t *testing.T) {
		for _, s := range runtime.PlanTermination(pod, all.Pod, runtime.Termination{}, testTime) {
			assert.True(t, s.Forced)
			assert.Nil(t, s.PreStop)
			assert.Zero(t, s.RemainingGracePeriod(testTime))
			assert.Zero(t, s.StopPeriod(testTime, 20*time.Second))
			assert.Equal(t, testTime, s.Deadline)
		}
	})
	t.Run("what has ended is left out, what may run is in", func(t *testing.T) {
		v := newView(exitedSandbox(0), exited("a", 0), running("s"), ready(1), observed("a", 1, runtime.Unknown), observed("b", 0, runtime.Created))
		stops := runtime.PlanTermination(pod, v.Pod, grace, testTime)
		assert.Equal(t, []string{"0 b#0", "0 a#1", "1 s#0"}, stages(stops))
		for _, s := range stops {
			assert.Nil(t, s.PreStop, "a hook runs only in what surely runs")
		}
	})
	t.Run("a sidecar that was made last ends last all the same", func(t *testing.T) {
		v := newView(ready(0), running("a"), running("s", attempt(1)))
		assert.Equal(t, []string{"0 a#0", "1 s#1"}, stages(runtime.PlanTermination(pod, v.Pod, grace, testTime)))
	})
	t.Run("sidecars of an orphan end in the reverse order of their first start", func(t *testing.T) {
		sidecar := func(c *runtime.Container) { c.Type = runtime.Sidecar }
		v := newView(ready(0), exited("s", 1, sidecar), running("a"), running("z", sidecar), running("s", attempt(1), sidecar))
		assert.Equal(t, []string{"0 a#0", "1 z#0", "2 s#1"}, stages(runtime.PlanTermination(&corev1.Pod{}, v.Pod, grace, testTime)))
	})
	t.Run("an orphan ends by what its containers carry", func(t *testing.T) {
		carried := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 2}}
		kind := func(k runtime.ContainerType) func(*runtime.Container) {
			return func(c *runtime.Container) { c.Type, c.PreStop = k, carried }
		}
		v := newView(ready(0), running("s", kind(runtime.Sidecar)), running("z", kind(runtime.Sidecar)), running("a", kind(runtime.Regular)))
		stops := runtime.PlanTermination(&corev1.Pod{}, v.Pod, grace, testTime)
		require.Equal(t, []string{"0 a#0", "1 z#0", "2 s#0"}, stages(stops))
		assert.Equal(t, carried, stops[0].PreStop)
	})
	t.Run("nothing runs", func(t *testing.T) {
		assert.Empty(t, runtime.PlanTermination(pod, newView(ready(0), exited("a", 0)).Pod, grace, testTime))
	})
}

func TestKinds(t *testing.T) {
	pod := newPod(always, sidecarC("s"), initC("i"), regular("a"), ephemeralC("e"), ephemeralC("f"))
	var got []string
	for c, kind := range runtime.ContainerSpecs(pod) {
		got = append(got, c.Name+" "+kind.String())
		typ, ok := runtime.ContainerTypeOf(pod, c.Name)
		assert.True(t, ok)
		assert.Equal(t, kind, typ)
		assert.Same(t, c, runtime.ContainerSpec(pod, c.Name))
	}
	assert.Equal(t, []string{"s Sidecar", "i Init", "a Regular", "e Ephemeral", "f Ephemeral"}, got)
	_, ok := runtime.ContainerTypeOf(pod, "x")
	assert.False(t, ok)
	assert.Nil(t, runtime.ContainerSpec(pod, "x"))
	for range 5 { // each list may be left early
		for c := range runtime.ContainerSpecs(pod) {
			if c.Name == got[0][:1] {
				got = got[1:]
				break
			}
		}
		if len(got) == 0 {
			break
		}
	}
	assert.Empty(t, got)
}
