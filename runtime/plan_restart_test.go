package runtime_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// RT-4
func TestRestartPolicies(t *testing.T) {
	one := func(p corev1.RestartPolicy, tweaks ...tweak) *corev1.Pod {
		return newPod(p, regular("a", tweaks...), regular("b"))
	}
	after := func(code int32, more ...put) runtime.PlanInput {
		return newView(append([]put{ready(0), exited("a", code), running("b")}, more...)...)
	}
	const restarted = "start a#1 step 1"
	own := policy
	testPlans(t, []planCase{
		{"always, success", one(always), after(0), restarted},
		{"always, failure", one(always), after(1), restarted},
		{"on failure, success", one(onFailure), after(0), ""},
		{"on failure, failure", one(onFailure), after(1), restarted},
		{"never, success", one(never), after(0), ""},
		{"never, failure", one(never), after(1), ""},
		{"its own: never", one(always, own(corev1.ContainerRestartPolicyNever)), after(1), ""},
		{"its own: always", one(never, own(corev1.ContainerRestartPolicyAlways)), after(0), restarted},
		{"its own: on failure", one(never, own(corev1.ContainerRestartPolicyOnFailure)), after(1), restarted},
		{"rule fits", one(never, own(corev1.ContainerRestartPolicyNever), rule(restartAction, in, 42, 43)), after(43), restarted},
		{"rule does not fit", one(never, own(corev1.ContainerRestartPolicyNever), rule(restartAction, in, 42)), after(1), ""},
		{"rule by what is not", one(never, own(corev1.ContainerRestartPolicyNever), rule(restartAction, notIn, 0, 42)), after(1), restarted},
		{"rule by what is not, and is", one(never, own(corev1.ContainerRestartPolicyNever), rule(restartAction, notIn, 0, 42)), after(42), ""},
		{"rule of a kind that there is not", one(never, own(corev1.ContainerRestartPolicyNever), rule(restartAction, "Between", 1)), after(1), ""},
		{"on failure: the exit code counts, whatever the OOM killer took", one(onFailure), newView(ready(0), exited("a", 0, oomKilled), running("b")), ""},
		{"the highest number stays", one(always), newView(ready(0), exited("a", 1, attempt(math.MaxUint32)), running("b")), "start a#4294967295 step 1"},
		{"rule without codes", one(never, func(c *corev1.Container) {
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: restartAction}}
		}), after(1), ""},
		{"unknown under never", one(never), newView(ready(0), observed("a", 0, runtime.Unknown), running("b")), "kill a#0"},
		{"unknown: rules need the exit code", one(never, own(corev1.ContainerRestartPolicyNever), rule(restartAction, in, 42)), newView(ready(0), observed("a", 0, runtime.Unknown), running("b")), "kill a#0"},
		{"unknown: no rule changes a restart", one(never, own(corev1.ContainerRestartPolicyOnFailure), rule(restartAction, in, 42)), newView(ready(0), observed("a", 0, runtime.Unknown), running("b")), "kill a#0; start a#1 step 1"},
		{"unknown does not wait", one(onFailure), newView(ready(0), observed("a", 3, runtime.Unknown, step(3)), running("b")), "kill a#3; start a#4 step 4"},
		{"made but not started, under never", one(never), newView(ready(0), observed("a", 0, runtime.Created), running("b")), "remove a#0; start a#0"},
		{"restart counts of a runtime that forgot", one(always), newView(ready(0), running("b"), restarts("a", 6)), "start a#7"}, // RT-13
		{"restart counts: the higher counts", one(always), after(1, restarts("a", 4)), "start a#5 step 1"},
		{"not in the spec", one(always), newView(ready(0), running("a"), running("b"), running("x")), "kill x#0"},
		{"twice", one(always), newView(ready(0), running("a"), running("a", attempt(1)), running("b")), "kill a#0"},
		{"all at once", newPod(always, regular("a"), regular("b"), regular("c")), newView(ready(0), exited("a", 1), exited("b", 1)), "start a#1 step 1; start b#1 step 1; start c#0"},
	})
}

// RT-4
func TestUnhealthy(t *testing.T) {
	view := func(more ...put) runtime.PlanInput {
		return newView(append([]put{ready(0), running("a"), running("b"), unwell("a#0")}, more...)...)
	}
	one := func(p corev1.RestartPolicy, tweaks ...tweak) *corev1.Pod {
		return newPod(p, regular("a", tweaks...), regular("b"))
	}
	testPlans(t, []planCase{
		{"always", one(always), view(), "kill a#0; start a#1 step 1"},
		{"on failure", one(onFailure), view(), "kill a#0; start a#1 step 1"},
		{"never", one(never), view(), "kill a#0"},
		{"startup", one(always), newView(ready(0), running("a"), running("b"), probed("a#0", runtime.ProbeResults{Startup: runtime.ProbeFailure})), "kill a#0; start a#1 step 1"},
		{"not ready is no reason", one(always), newView(ready(0), running("a"), running("b"), probed("a#0", runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeFailure})), ""},
		{"again and again: its back-off comes first", one(always), newView(ready(0), running("a", step(2), func(c *runtime.Container) { c.Started = testTime.Add(-time.Minute) }), running("b"), unwell("a#0")), "kill a#0"},
		{"after a long run its back-off starts anew", one(always), newView(ready(0), running("a", step(3)), running("b"), unwell("a#0")), "kill a#0; start a#1 step 1"},
		{"ended, a rule looks at the exit code", one(never, policy(corev1.ContainerRestartPolicyNever), rule(restartAction, in, 137)), newView(ready(0), exited("a", 137), running("b"), unwell("a#0")), "start a#1 step 1"},
		{"a rule fits a clean exit too", one(never, policy(corev1.ContainerRestartPolicyNever), rule(restartAction, notIn, 42)), newView(ready(0), exited("a", 0), running("b"), unwell("a#0")), "start a#1 step 1"},
		{"or the pod would be done", newPod(never, regular("a", rule(restartAction, notIn, 42))), newView(ready(0), exited("a", 0), unwell("a#0")), "start a#1 step 1"},
		{"a rule that does not fit leaves it to the policy", one(never, policy(corev1.ContainerRestartPolicyNever), rule(restartAction, in, 42)), newView(ready(0), exited("a", 0), running("b"), unwell("a#0")), ""},
		{"rules wait for the exit code", one(never, policy(corev1.ContainerRestartPolicyNever), rule(restartAction, in, 137)), view(), "kill a#0"},
		{"and may ask for more than its policy does", one(never, policy(corev1.ContainerRestartPolicyAlways), rule(restartAllAction, in, 137)), view(), "kill a#0"},
		{
			"on failure: a clean exit on being stopped is not a success", one(onFailure),
			newView(ready(0), exited("a", 0, step(1), ended(time.Second)), running("b"), unwell("a#0")), "wait a 9s",
		},
	})
	t.Run("grace of the probe", func(t *testing.T) {
		plan := runtime.Plan(one(always, livenessProbe(7)), view(), testTime)
		require.NotEmpty(t, plan)
		assert.Equal(t, 7*time.Second, plan[0].GracePeriod)
		assert.Equal(t, runtime.ReasonUnhealthy, plan[0].Reason)
		plan = runtime.Plan(one(always, livenessProbe(0)), view(), testTime)
		assert.Equal(t, 30*time.Second, plan[0].GracePeriod, "without one, the pod's")

		both := one(always, livenessProbe(7), startupProbe, func(c *corev1.Container) { c.StartupProbe.TerminationGracePeriodSeconds = new(int64(9)) })
		plan = runtime.Plan(both, newView(ready(0), running("a"), running("b"), probed("a#0", runtime.ProbeResults{Startup: runtime.ProbeFailure})), testTime)
		assert.Equal(t, 9*time.Second, plan[0].GracePeriod)
	})
	t.Run("endless grace of the probe", func(t *testing.T) {
		endless := new(int64(math.MaxInt64))
		pod := one(always, livenessProbe(*endless), startupProbe, func(c *corev1.Container) { c.StartupProbe.TerminationGracePeriodSeconds = endless })
		for _, probes := range []runtime.ProbeResults{{Startup: runtime.ProbeFailure}, {Startup: runtime.ProbeSuccess, Liveness: runtime.ProbeFailure}} {
			plan := runtime.Plan(pod, newView(ready(0), running("a"), running("b"), probed("a#0", probes)), testTime)
			require.NotEmpty(t, plan)
			assert.Equal(t, runtime.ReasonUnhealthy, plan[0].Reason)
			assert.Greater(t, plan[0].GracePeriod, time.Hour)
		}
	})
}

// RT-8
func TestBackOffOfPlans(t *testing.T) {
	pod := newPod(always, regular("a"))
	view := func(puts ...put) runtime.PlanInput { return newView(append([]put{ready(0)}, puts...)...) }
	short := view(exited("a", 1, attempt(4), step(4), ended(500*time.Millisecond)))
	short.BackOff = runtime.ExponentialBackOff{Max: time.Second}
	byCode := view(exited("a", 75, ended(time.Second)))
	byCode.BackOff = delays(func(r runtime.RestartInfo) time.Duration { return time.Duration(r.ExitCode) * time.Second })
	testPlans(t, []planCase{
		{"the first restart is at once", pod, view(exited("a", 1, ended(0))), "start a#1 step 1"},
		{"so it is when the clock of the end is ahead", pod, view(exited("a", 1, ended(-30*time.Second))), "start a#1 step 1"},
		{"the second waits", pod, view(exited("a", 1, attempt(1), step(1), ended(3*time.Second))), "wait a 7s"},
		{"and is due to the nanosecond", pod, view(exited("a", 1, attempt(1), step(1), ended(10*time.Second))), "start a#2 step 2"},
		{"doubles", pod, view(exited("a", 1, attempt(3), step(3), ended(0))), "wait a 40s"},
		{"up to five minutes", pod, view(exited("a", 1, attempt(30), step(30), ended(0))), "wait a 5m0s"},
		{"a long run starts anew", pod, view(exited("a", 1, attempt(5), step(5), ended(0), ranFor(10*time.Minute))), "start a#6 step 1"},
		{"a run that is not long enough does not", pod, view(exited("a", 1, attempt(5), step(5), ended(0), ranFor(10*time.Minute-1))), "wait a 2m40s"},
		{"another spec does not wait", pod, view(exited("a", 1, attempt(5), step(5), ended(0), hash("s1-old"))), "start a#6"},
		{"across a new sandbox", pod, newView(exitedSandbox(0), exited("a", 1, attempt(2), step(2), ended(time.Second))), "stop s0; create 1; wait a 19s"},
		{"a clock set back does not hold it", pod, view(exited("a", 1, attempt(2), step(2), ended(-24*time.Hour))), "start a#3 step 3"},
		{"a clock set back by less holds it no longer than it would have", pod, view(exited("a", 1, attempt(2), step(2), ended(-30*time.Second))), "wait a 20s"},
		{"the end is not known: from its making", pod, view(exited("a", 1, attempt(2), step(2), func(c *runtime.Container) {
			c.Finished, c.Started, c.Created = time.Time{}, time.Time{}, testTime.Add(-5*time.Second)
		})), "wait a 15s"},
		{"a shorter maximum", pod, short, "wait a 500ms"},
		{"by exit code", pod, byCode, "wait a 1m14s"},
	})
	wait := runtime.Plan(pod, view(exited("a", 1, attempt(1), step(1), ended(0))), testTime)[0]
	assert.Equal(t, runtime.ReasonCrashLoop, wait.Reason)
	assert.Equal(t, "back-off 10s restarting failed container=a pod=web_ns(u1)", wait.Message)
}

// RT-8: a back-off hears how long a container ran, or 0 where that is not known.
func TestBackOff_HearsOfTheRun(t *testing.T) {
	for name, tt := range map[string]struct {
		observed put
		want     time.Duration
	}{
		"ended":                 {exited("a", 1, ended(time.Minute), ranFor(time.Hour)), time.Hour},
		"still runs":            {running("a", since(time.Hour)), time.Hour},
		"start is not known":    {exited("a", 1, func(c *runtime.Container) { c.Started = time.Time{} }), 0},
		"ended before it began": {exited("a", 1, ended(time.Minute), ranFor(-time.Hour)), 0},
	} {
		t.Run(name, func(t *testing.T) {
			ran := time.Duration(-1)
			v := newView(ready(0), tt.observed, unwell("a#0"))
			v.BackOff = delays(func(r runtime.RestartInfo) time.Duration { ran = r.RunDuration; return 0 })
			runtime.Plan(newPod(always, regular("a")), v, testTime)
			assert.Equal(t, tt.want, ran)
		})
	}
}

type delays func(runtime.RestartInfo) time.Duration

func (d delays) Delay(r runtime.RestartInfo) time.Duration { return d(r) }

// RT-8
// oneHour waits an hour whatever happened; good says which runs reset the count.
type oneHour struct{}

func (oneHour) Delay(r runtime.RestartInfo) time.Duration {
	return time.Duration(min(r.BackOffStep, 1)) * time.Hour
}

type resetting struct {
	oneHour
	good func(runtime.RestartInfo) bool
}

func (r resetting) ShouldReset(run runtime.RestartInfo) bool { return r.good(run) }

// RT-8: the back-off is reset after the runs for which ShouldReset is true, or
// after ten minutes.
func TestResetOfTheBackOff(t *testing.T) {
	pod := newPod(always, regular("a"))
	for name, c := range map[string]struct {
		b    runtime.BackOff
		ran  time.Duration
		want string
	}{
		"ten minutes":             {oneHour{}, 10 * time.Minute, "start a#1 step 1"},
		"less":                    {oneHour{}, 10*time.Minute - time.Second, "wait a 59m59s"},
		"never":                   {resetting{good: func(runtime.RestartInfo) bool { return false }}, time.Hour, "wait a 59m59s"},
		"always":                  {resetting{good: func(runtime.RestartInfo) bool { return true }}, time.Second, "start a#1 step 1"},
		"by what it is told":      {resetting{good: func(r runtime.RestartInfo) bool { return r.ExitCode == 3 && r.RunDuration == time.Second }}, time.Second, "start a#1 step 1"},
		"the default's own bound": {runtime.ExponentialBackOff{Reset: time.Minute}, time.Minute, "start a#1 step 1"},
	} {
		t.Run(name, func(t *testing.T) {
			view := newView(ready(0), exited("a", 3, step(4), ended(time.Second), ranFor(c.ran)))
			view.BackOff = c.b
			assert.Equal(t, c.want, show(runtime.Plan(pod, view, testTime)))
		})
	}
}

func TestExponentialBackOff(t *testing.T) {
	var got []time.Duration
	for step := range 8 {
		got = append(got, runtime.DefaultBackOff().Delay(runtime.RestartInfo{BackOffStep: step})/time.Second)
	}
	assert.Equal(t, []time.Duration{0, 10, 20, 40, 80, 160, 300, 300}, got)
	b := runtime.ExponentialBackOff{Base: time.Minute, Max: time.Millisecond}
	assert.Equal(t, time.Second, b.Delay(runtime.RestartInfo{BackOffStep: 1}), "never under a second")
	assert.Equal(t, 5*time.Minute, runtime.DefaultBackOff().Delay(runtime.RestartInfo{BackOffStep: math.MaxInt}))
	assert.Zero(t, runtime.DefaultBackOff().Delay(runtime.RestartInfo{BackOffStep: -1}))
	assert.True(t, runtime.ExponentialBackOff{Reset: time.Minute}.ShouldReset(runtime.RestartInfo{RunDuration: time.Minute}))
}

// RT-4
func TestRestartAllContainers(t *testing.T) {
	worker := regular("w", policy(corev1.ContainerRestartPolicyNever), rule(restartAllAction, in, 88))
	pod := newPod(never, initC("i"), sidecarC("s"), regular("a"), worker)
	testPlans(t, []planCase{
		{
			"everything from the first init container on", pod,
			newView(ready(0), exited("i", 0), running("s"), running("a"), exited("w", 88)),
			"kill a#0; kill s#0 stage 1; start i#1 round 1",
		},
		{
			"sidecars stop last, in reverse order", newPod(never, sidecarC("s"), sidecarC("t"), regular("a"), worker, ephemeralC("debug")),
			newView(ready(0), running("s"), running("t"), running("a"), exited("w", 88), running("debug")),
			"kill a#0; kill t#0 stage 1; kill s#0 stage 2; start s#1 round 1",
		},
		{
			"the sandbox stays, and so does the order", pod,
			newView(ready(0), exited("i", 0), exited("s", 137), exited("a", 137), exited("w", 88), exited("i", 0, attempt(1), round(1))),
			"start s#1 round 1",
		},
		{
			"what was ended for it runs again, under never", pod,
			newView(ready(0), exited("s", 137), exited("a", 137), exited("w", 88),
				exited("i", 0, attempt(1), round(1)), running("s", attempt(1), round(1))),
			"start a#1 round 1; start w#1 step 1 round 1",
		},
		{
			"who asked for it backs off", pod,
			newView(ready(0), exited("a", 137, round(1)), exited("w", 88, attempt(1), step(1), round(1), ended(time.Second)),
				exited("i", 0, attempt(2), round(2)), running("s", attempt(2), round(2))),
			"start a#1 round 2; wait w 9s",
		},
		{
			"once only", pod,
			newView(ready(0), exited("w", 88), exited("i", 0, attempt(1), round(1)), running("s", attempt(1), round(1)),
				running("a", attempt(1), round(1)), running("w", attempt(1), round(1))),
			"",
		},
		{
			"with a lost sandbox", pod,
			newView(exitedSandbox(0), exited("i", 0), exited("s", 137), exited("a", 0), exited("w", 88)),
			"stop s0; create 1; start i#1 round 1",
		},
		{
			"not once more when they were ended with their sandbox", pod,
			newView(exitedSandbox(0), exited("i", 0), exited("s", 137), exited("a", 0), exited("w", 88), ready(1), running("i", attempt(1))),
			"",
		},
		{
			"who was ended with its sandbox runs again", pod,
			newView(exitedSandbox(0), exited("i", 0), exited("s", 137), exited("a", 0), exited("w", 88), ready(1), exited("i", 0, attempt(1)), running("s", attempt(1))),
			"start w#1 step 1",
		},
		{
			"not a sidecar that is stopped because the pod is done", newPod(never, sidecarC("s", rule(restartAllAction, notIn, 0)), regular("a")),
			newView(ready(0), exited("a", 0), exited("s", 143)), "stop s0",
		},
		{
			"or because an init container failed", newPod(never, sidecarC("s", rule(restartAllAction, notIn, 0)), initC("i"), regular("a")),
			newView(ready(0), exited("i", 1), exited("s", 143)), "stop s0",
		},
		{
			"or an init container that was to run once more", newPod(onFailure, initC("i", rule(restartAllAction, notIn, 0)), regular("a")),
			newView(exitedSandbox(0), exited("a", 0), ready(1), exited("i", 143)), "stop s1",
		},
		{
			"a sidecar for which the others were stopped", newPod(never, sidecarC("s", rule(restartAllAction, notIn, 0)), regular("a"), regular("b")),
			newView(ready(0), exited("a", 0), exited("s", 88), exited("b", 137)), "start s#1 step 1 round 1",
		},
		{
			"a sidecar of a pod that is not done", newPod(never, sidecarC("s", rule(restartAllAction, notIn, 0)), regular("a"), regular("b")),
			newView(ready(0), exited("a", 0), running("b"), exited("s", 88)), "kill b#0; start s#1 step 1 round 1",
		},
		{
			"another code does not", pod,
			newView(ready(0), exited("i", 0), running("s"), running("a"), exited("w", 1)), "",
		},
		{
			"also a pod that would be done", pod,
			newView(ready(0), exited("i", 0), running("s"), exited("a", 0), exited("w", 88)),
			"kill s#0; start i#1 round 1",
		},
		{
			"also an init container, though it failed for good", newPod(never, initC("i", policy(corev1.ContainerRestartPolicyNever), rule(restartAllAction, in, 88)), regular("a")),
			newView(ready(0), exited("i", 88)), "start i#1 step 1 round 1",
		},
		{
			"an init container that did its work and asks for it", newPod(never, initC("i", policy(corev1.ContainerRestartPolicyNever), rule(restartAllAction, in, 0)), regular("a")),
			newView(ready(0), exited("i", 0)), "start i#1 step 1 round 1",
		},
		{
			"not one that runs", newPod(never, regular("w", rule(restartAllAction, notIn, 1)), regular("a")),
			newView(ready(0), running("w"), running("a")), "",
		},
		{
			"ephemeral ones go on", newPod(never, regular("a"), worker, ephemeralC("debug")),
			newView(ready(0), running("a"), exited("w", 88), running("debug")), "kill a#0; start a#1 round 1; start w#1 step 1 round 1",
		},
		{
			"and ask for nothing", newPod(never, regular("a"), ephemeralC("debug"), func(p *corev1.Pod) {
				rule(restartAllAction, in, 88)((*corev1.Container)(&p.Spec.EphemeralContainers[0].EphemeralContainerCommon))
			}),
			newView(ready(0), running("a"), exited("debug", 88)), "",
		},
		{
			"the first rule decides", newPod(never, regular("w", rule(restartAction, in, 88), rule(restartAllAction, in, 88)), regular("a")),
			newView(ready(0), exited("w", 88), running("a")), "start w#1 step 1",
		},
	})
}

// It agrees with Plan on who runs again.
func TestRestartOfAll(t *testing.T) {
	worker := regular("w", policy(corev1.ContainerRestartPolicyNever), rule(restartAllAction, in, 88))
	pod := newPod(never, initC("i"), regular("a"), worker, ephemeralC("debug"))
	names := []string{"i", "a", "w", "debug"}
	for _, tt := range []struct {
		name     string
		observed runtime.PlanInput
		underWay bool
		pending  []string
	}{
		{"nothing yet", newView(ready(0)), false, nil},
		{"all run", newView(ready(0), exited("i", 0), running("a"), running("w"), running("debug")), false, nil},
		{"another code", newView(ready(0), exited("i", 0), running("a"), exited("w", 1)), false, nil},
		{"one asks for it", newView(ready(0), exited("i", 0), running("a"), exited("w", 88), running("debug")), true, []string{"i", "a", "w"}},
		{
			"the first is made again", newView(ready(0), exited("a", 137), exited("w", 88), observed("i", 1, runtime.Created, round(1))),
			false,
			[]string{"i", "a", "w"},
		},
		{
			"the first runs again", newView(ready(0), exited("a", 137), exited("w", 88), running("i", attempt(1), round(1))),
			false,
			[]string{"a", "w"},
		},
		{
			"all run again", newView(ready(0), exited("i", 0, attempt(1), round(1)), running("a", attempt(1), round(1)), running("w", attempt(1), round(1))),
			false, nil,
		},
		{
			"and once more", newView(ready(0), exited("i", 0, attempt(1), round(1)), exited("a", 137, attempt(1), round(1)), exited("w", 88, attempt(1), round(1))),
			true,
			[]string{"i", "a", "w"},
		},
		{"made for the first time", newView(ready(0), exited("i", 0), observed("a", 0, runtime.Created), running("w")), false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := runtime.RestartAllStatusOf(pod, &tt.observed.Pod)
			assert.True(t, all.Configured)
			assert.Equal(t, tt.underWay, all.InProgress)
			var pending []string
			for _, name := range names {
				if all.IsPending(name) {
					pending = append(pending, name)
				}
			}
			assert.Equal(t, tt.pending, pending)
		})
	}
	for _, p := range []*corev1.Pod{
		newPod(never, regular("a"), regular("w", rule(restartAction, in, 88))),
		newPod(never, regular("a"), ephemeralC("debug"), func(p *corev1.Pod) {
			rule(restartAllAction, in, 88)((*corev1.Container)(&p.Spec.EphemeralContainers[0].EphemeralContainerCommon))
		}),
	} {
		v := newView(ready(0), running("a"), exited("w", 88))
		assert.Zero(t, runtime.RestartAllStatusOf(p, &v.Pod), "no container has such a rule")
	}
}

func TestDone(t *testing.T) {
	for _, tt := range []struct {
		name     string
		pod      *corev1.Pod
		observed runtime.PlanInput
		phase    corev1.PodPhase
	}{
		{"nothing yet", newPod(never, regular("a")), newView(), ""},
		{"runs", newPod(never, regular("a")), newView(ready(0), running("a")), ""},
		{"succeeded", newPod(onFailure, regular("a"), regular("b")), newView(ready(0), exited("a", 0), exited("b", 0)), corev1.PodSucceeded},
		{"failed", newPod(never, regular("a"), regular("b")), newView(ready(0), exited("a", 0), exited("b", 2)), corev1.PodFailed},
		{"one still to come", newPod(never, regular("a"), regular("b")), newView(ready(0), exited("a", 0)), ""},
		{"one may restart", newPod(onFailure, regular("a")), newView(ready(0), exited("a", 2)), ""},
		{"always is never done", newPod(always, regular("a")), newView(exitedSandbox(0), exited("a", 0)), ""},
		{"sidecars do not count", newPod(never, sidecarC("s"), regular("a")), newView(ready(0), running("s"), exited("a", 0)), corev1.PodSucceeded},
		{"init failed", newPod(never, initC("i"), regular("a")), newView(ready(0), exited("i", 2)), corev1.PodFailed},
		{"init failed and may restart", newPod(onFailure, initC("i"), regular("a")), newView(ready(0), exited("i", 2)), ""},
		{"unknown counts as failed", newPod(never, regular("a"), regular("b")), newView(ready(0), exited("a", 0), observed("b", 0, runtime.Unknown)), corev1.PodFailed},
		{"unknown, and may restart", newPod(onFailure, regular("a")), newView(ready(0), observed("a", 0, runtime.Unknown)), ""},
		{"init of unknown state may be incomplete", newPod(never, initC("i", rule(restartAction, in, 42)), regular("a")), newView(ready(0), observed("i", 0, runtime.Unknown)), corev1.PodFailed},
		{"unknown, and rules may restart it", newPod(never, regular("a", rule(restartAction, in, 42))), newView(ready(0), observed("a", 0, runtime.Unknown)), ""},
		{"stand-in", &corev1.Pod{}, newView(ready(0), exited("a", 0)), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			done, phase := runtime.IsTerminal(tt.pod, tt.observed.Pod)
			assert.Equal(t, tt.phase, phase)
			assert.Equal(t, tt.phase != "", done)
		})
	}
}
