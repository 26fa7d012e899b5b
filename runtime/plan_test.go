package runtime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

type planCase struct {
	name     string
	pod      *corev1.Pod
	observed runtime.PlanInput
	want     string // as show writes it
}

func testPlans(t *testing.T, cases []planCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, show(runtime.Plan(tt.pod, tt.observed, testTime)))
		})
	}
}

// RT-2, RT-3
func TestSandbox(t *testing.T) {
	two := newPod(always, regular("a"), regular("b"))
	testPlans(t, []planCase{
		{"none yet", two, newView(), "create 0; start a#0; start b#0"},
		{"all well", two, newView(ready(0), running("a"), running("b")), ""},
		{"all well, told in another order", newPod(always, regular("a")), newView(ready(1), running("a"), exitedSandbox(0)), ""},
		{
			// The clock was set back in between: the newer one has the higher number.
			"all well, though the former one looks newer", newPod(always, regular("a")),
			newView(ready(0), running("a", attempt(1)), exited("a", 1)), "",
		},
		{
			"of two with one number the newer counts", newPod(always, regular("a")),
			newView(sandbox(0, runtime.SandboxNotReady, func(s *runtime.Sandbox) { s.ID = "old" }), ready(0), running("a")), "",
		},
		{
			"a runtime that does not tell sandboxes apart", newPod(always, regular("a")),
			newView(ready(0), running("a", func(c *runtime.Container) { c.SandboxID = "" })), "",
		},
		{
			"what was a sidecar ends like one", newPod(always, regular("a")),
			newView(exitedSandbox(0), running("a"), running("x", func(c *runtime.Container) { c.Type = runtime.Sidecar })),
			"kill a#0; kill x#0 stage 1; stop s0; create 1; start a#1",
		},
		{
			"not ready any more", two, newView(exitedSandbox(0), running("a"), exited("b", 137)),
			"kill a#0; stop s0; create 1; start a#1; start b#1 step 1",
		},
		{
			"several ready", two, newView(ready(0), running("a"), ready(1), running("b")),
			"kill b#0; kill a#0; stop s1; stop s0; create 2; start a#1; start b#1",
		},
		{
			"an older one is left", two, newView(exitedSandbox(0), exited("a", 0), ready(1), running("a", attempt(1)), running("b")),
			"",
		},
		{
			"network mode changed", newPod(always, regular("a"), hostNetwork), newView(ready(0), running("a")),
			"kill a#0; stop s0; create 1; start a#1",
		},
		{
			"lost its address", two,
			newView(sandbox(0, runtime.SandboxReady, func(s *runtime.Sandbox) { s.IPs = nil }), running("a"), running("b")),
			"kill b#0; kill a#0; stop s0; create 1; start a#1; start b#1",
		},
		{
			"a listing tells of no address", two,
			newView(sandbox(0, runtime.SandboxReady, func(s *runtime.Sandbox) { s.IPs = nil }), running("a"), running("b"),
				func(v *runtime.PlanInput) { v.ObservedAt = time.Time{} }),
			"",
		},
		{
			"a listing tells of no network mode", newPod(always, regular("a"), hostNetwork),
			newView(ready(0), running("a"), func(v *runtime.PlanInput) { v.ObservedAt = time.Time{} }), "",
		},
		{
			"host network has no address", newPod(always, regular("a"), hostNetwork),
			newView(sandbox(0, runtime.SandboxReady, func(s *runtime.Sandbox) { s.IPs, s.HostNetwork = nil, true }), running("a")),
			"",
		},
		{"two that are not ready", two, newView(exitedSandbox(0), exitedSandbox(1)), "stop s1; create 2; start a#0; start b#0"},
		{"being deleted", newPod(always, regular("a"), deleted), newView(), ""},
		{
			"all done, no new one", newPod(never, regular("a"), regular("b")),
			newView(exitedSandbox(0), exited("a", 0), exited("b", 1)), "",
		},
		{
			"all done, the ready one goes", newPod(onFailure, sidecarC("s"), regular("a")),
			newView(ready(0), running("s"), exited("a", 0)), "kill s#0; stop s0",
		},
		{
			// RT-6
			"all done, sidecars end in reverse order", newPod(never, sidecarC("s"), initC("i"), sidecarC("t"), regular("a"), ephemeralC("debug")),
			newView(ready(0), running("s"), exited("i", 0), running("t"), exited("a", 0), running("debug")),
			"kill debug#0; kill t#0 stage 1; kill s#0 stage 2; stop s0",
		},
		{
			"a lost one ends in the same order", newPod(always, sidecarC("s"), sidecarC("t"), regular("a")),
			newView(exitedSandbox(0), running("a"), running("s"), running("t")),
			"kill a#0; kill t#0 stage 1; kill s#0 stage 2; stop s0; create 1; start s#1",
		},
		{
			"never: what runs in a lost one is done", newPod(never, regular("a"), regular("b")),
			newView(exitedSandbox(0), running("a"), exited("b", 0)), "kill a#0; stop s0",
		},
		{
			"never: what never ran still has its turn", newPod(never, regular("a"), regular("b")),
			newView(exitedSandbox(0), exited("a", 0)), "stop s0; create 1; start b#0",
		},
		{
			"never: what was made and never ran has its turn too", newPod(never, regular("a")),
			newView(exitedSandbox(0), observed("a", 0, runtime.Created)), "stop s0; create 1; start a#1",
		},
		{
			"never: what still runs in an older one is done", newPod(never, regular("a")),
			newView(exitedSandbox(0), running("a"), ready(1)), "kill a#0; stop s1; stop s0",
		},
		{
			"on failure: what succeeded is not run again", newPod(onFailure, regular("a"), regular("b")),
			newView(exitedSandbox(0), exited("a", 0), running("b")), "kill b#0; stop s0; create 1; start b#1",
		},
		{
			"of two with one number the newer counts, of containers too", newPod(always, regular("a")),
			newView(ready(0), exited("a", 1), running("a")), "",
		},
		{
			"still runs in an older one", newPod(always, regular("a")),
			newView(exitedSandbox(0), running("a"), ready(1)), "kill a#0; start a#1",
		},
	})
}

// What is planned for a container that the spec does not have is of the kind that it
// carries.
func TestPlan_KindOfAStray(t *testing.T) {
	v := newView(ready(0), running("a"), running("x", func(c *runtime.Container) { c.Type = runtime.Sidecar }))
	plan := runtime.Plan(newPod(always, regular("a")), v, testTime)
	require.Equal(t, "kill x#0", show(plan))
	assert.Equal(t, runtime.Sidecar, plan[0].ContainerType)
}

// RT-3
func TestSandboxReason(t *testing.T) {
	pod := newPod(always, regular("a"))
	for want, v := range map[string]runtime.PlanInput{
		"":                               newView(ready(0)),
		runtime.ReasonSandboxLost:        newView(exitedSandbox(0)),
		runtime.ReasonMultipleSandboxes:  newView(ready(0), ready(1)),
		runtime.ReasonNoPodIP:            newView(sandbox(0, runtime.SandboxReady, func(s *runtime.Sandbox) { s.IPs = nil })),
		runtime.ReasonNetworkModeChanged: newView(sandbox(0, runtime.SandboxReady, func(s *runtime.Sandbox) { s.HostNetwork = true })),
	} {
		assert.Equal(t, want, runtime.SandboxReason(pod, &v.Pod))
	}
}

func TestInitialized(t *testing.T) {
	pod := newPod(always, initC("i"), regular("a", rule(restartAllAction, in, 42)))
	for _, tt := range []struct {
		name     string
		observed runtime.PlanInput
		want     bool
	}{
		{"nothing yet", newView(ready(0)), false},
		{"init is done", newView(ready(0), exited("i", 0)), false},
		{"a regular container was made", newView(ready(0), observed("a", 0, runtime.Created)), true},
		{"and ended", newView(ready(0), exited("a", 1)), true},
		{"in an older sandbox", newView(exitedSandbox(0), exited("a", 1), ready(1)), false},
		{"before all are restarted", newView(ready(0), exited("a", 42)), false},
	} {
		t.Run(tt.name, func(t *testing.T) { assert.Equal(t, tt.want, runtime.Initialized(pod, &tt.observed.Pod)) })
	}
}

// Done tells Failed of what was lost with its sandbox, whatever its exit code will be.
func TestDone_RunsInALostSandbox(t *testing.T) {
	done, phase := runtime.IsTerminal(newPod(never, regular("a")), newView(exitedSandbox(0), running("a")).Pod)
	assert.True(t, done)
	assert.Equal(t, corev1.PodFailed, phase)
}

// The messages of the events of kills are the kubelet's, which people and their tools look for.
func TestPlan_KillMessages(t *testing.T) {
	unstarted := probed("a#0", runtime.ProbeResults{Startup: runtime.ProbeFailure})
	sidecar := newPod(always, sidecarC("s"), regular("a"))
	for want, tt := range map[string]struct {
		pod  *corev1.Pod
		view runtime.PlanInput
	}{
		"Container a failed liveness probe, will be restarted": {newPod(always, regular("a")), newView(ready(0), running("a"), unwell("a#0"))},
		"Container a failed startup probe, will be restarted":  {newPod(onFailure, regular("a")), newView(ready(0), running("a"), unstarted)},
		"Container a failed startup probe":                     {newPod(never, regular("a")), newView(ready(0), running("a"), unstarted)},
		"Container a definition changed, will be restarted":    {newPod(never, regular("a")), newView(ready(0), running("a", hash("s1-0")))},
		"Container a resize requires restart":                  {newPod(always, regular("a", limits("1", "1Gi"), restartOn("cpu"))), newView(ready(0), running("a", has("1", "2", "1Gi")))},
		"Container a has an unknown state, will be restarted":  {newPod(always, regular("a")), newView(ready(0), observed("a", 0, runtime.Unknown))},
		"Init container s failed liveness probe":               {sidecar, newView(ready(0), running("s"), running("a"), unwell("s#0"))},
		"Init container s definition changed":                  {sidecar, newView(ready(0), running("s", hash("s1-0")), running("a"))},
	} {
		plan := runtime.Plan(tt.pod, tt.view, testTime)
		require.NotEmpty(t, plan, want)
		assert.Equal(t, runtime.KillContainer, plan[0].Type, want)
		assert.Equal(t, want, plan[0].Message)
	}
}
