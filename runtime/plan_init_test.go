package runtime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// RT-5
func TestInitContainers(t *testing.T) {
	pod := newPod(always, initC("i"), initC("j"), regular("a"), regular("b"))
	strict := newPod(never, initC("i"), initC("j"), regular("a"))
	testPlans(t, []planCase{
		{"the first with the sandbox", pod, newView(), "create 0; start i#0"},
		{"one at a time", pod, newView(ready(0), running("i")), ""},
		{"the next as soon as the former is done", pod, newView(ready(0), exited("i", 0)), "start j#0"},
		{"one that runs out of turn is waited for", pod, newView(ready(0), running("i"), exited("j", 0)), ""},
		{"then all regular ones", pod, newView(ready(0), exited("i", 0), exited("j", 0)), "start a#0; start b#0"},
		{"a failure is tried again", pod, newView(ready(0), exited("i", 1)), "start i#1 step 1"},
		{"a second failure waits", pod, newView(ready(0), exited("i", 1, attempt(1), step(1), ended(4*time.Second))), "wait i 6s"},
		{"never: one that runs goes on", strict, newView(ready(0), running("i")), ""},
		{"one that runs beside regular ones delays no other", pod, newView(ready(0), running("j"), running("a"), exited("b", 1)), "start b#1 step 1"},
		{"never: a failure ends the pod", strict, newView(ready(0), exited("i", 1)), "stop s0"},
		{"never: and ends the sidecars", newPod(never, sidecarC("s"), initC("i"), regular("a")), newView(ready(0), running("s"), exited("i", 1)), "kill s#0; stop s0"},
		{"never: a failure after a lost sandbox ends the pod", strict, newView(exitedSandbox(0), exited("i", 0), exited("j", 255)), ""},
		{"lost before the regular ones", strict, newView(exitedSandbox(0), exited("i", 0), exited("j", 0)), "stop s0; create 1; start i#1"},
		{"again after a new sandbox", pod, newView(exitedSandbox(0), exited("i", 0), exited("j", 0), running("a"), running("b")), "kill b#0; kill a#0; stop s0; create 1; start i#1"},
		{"again in the new sandbox, in order", pod, newView(exitedSandbox(0), exited("i", 0), exited("j", 0), exited("a", 0), ready(1), exited("i", 0, attempt(1))), "start j#1"},
		{"success is not held back by a back-off", pod, newView(exitedSandbox(0), exited("i", 0, step(3), ended(time.Second))), "stop s0; create 1; start i#1"},
		{"unknown counts as failed", pod, newView(ready(0), observed("i", 0, runtime.Unknown)), "kill i#0; start i#1 step 1"},
		{"never: unknown ends the pod", strict, newView(ready(0), observed("i", 0, runtime.Unknown)), "kill i#0; stop s0"},
		{"made but not started", pod, newView(ready(0), exited("i", 0), observed("j", 2, runtime.Created, step(2))), "remove j#2; start j#2 step 2"},
		{
			"not again while regular ones run, though its dead ones were collected", pod,
			newView(ready(0), running("a"), exited("b", 1)), "start b#1 step 1",
		},
		{
			"a failure that regular ones came after is no failure", newPod(never, initC("i"), regular("a")),
			newView(ready(0), exited("i", 1), running("a")), "",
		},
		{
			"not again when the last dead one is left of them", pod,
			newView(ready(0), exited("j", 0)), "start a#0; start b#0",
		},
		{
			// Upstream: one init container was run again and the rest were thought
			// done, for a regular container had been made in the old sandbox.
			"after a power loss all of them, whatever was made in the old sandbox", pod,
			newView(exitedSandbox(0), exited("i", 0), exited("j", 0), observed("a", 0, runtime.Created), ready(1), exited("i", 0, attempt(1))),
			"start j#1",
		},
		{
			"and the made one of the old sandbox does not take a number twice", pod,
			newView(exitedSandbox(0), exited("i", 0), exited("j", 0), observed("a", 0, runtime.Created), ready(1), exited("i", 0, attempt(1)), exited("j", 0, attempt(1))),
			"start a#1; start b#0",
		},
		{"one that runs finishes though its spec changed", pod, newView(ready(0), running("i", hash("s1-old"))), ""},
		{"what it did counts though its spec changed", pod, newView(ready(0), exited("i", 0, hash("s1-old"))), "start j#0"},
		{"a failed one is tried again as the changed spec has it, at once", pod, newView(ready(0), exited("i", 1, hash("s1-old"), step(3), ended(time.Second))), "start i#1"},
		{"always: one that lost a process to the OOM killer failed, whatever it exited with", pod, newView(ready(0), exited("i", 0, oomKilled)), "start i#1 step 1"},
		{"on failure: so it did", newPod(onFailure, initC("i"), regular("a")), newView(ready(0), exited("i", 0, oomKilled)), "start i#1 step 1"},
		{"never: so it did, and ends the pod", strict, newView(ready(0), exited("i", 0, oomKilled)), "stop s0"},
		{"and it is held back by a back-off", pod, newView(ready(0), exited("i", 0, oomKilled, step(1), ended(4*time.Second))), "wait i 6s"},
		{"in a new sandbox too", pod, newView(exitedSandbox(0), exited("i", 0, oomKilled, step(1), ended(4*time.Second))), "stop s0; create 1; wait i 6s"},
		{
			"its own policy", newPod(always, initC("i", policy(corev1.ContainerRestartPolicyNever)), regular("a")),
			newView(ready(0), exited("i", 3)), "stop s0",
		},
		{
			"a rule against its own policy", newPod(never, initC("i", policy(corev1.ContainerRestartPolicyNever), rule(restartAction, in, 3)), regular("a")),
			newView(ready(0), exited("i", 3)), "start i#1 step 1",
		},
	})
}

// RT-6
func TestSidecars(t *testing.T) {
	pod := newPod(always, sidecarC("s"), initC("i"), sidecarC("z"), regular("a"))
	probed1 := newPod(always, sidecarC("s", startupProbe), sidecarC("z"), regular("a"))
	started := func(id string) put { return probed(id, runtime.ProbeResults{Startup: runtime.ProbeSuccess}) }
	testPlans(t, []planCase{
		{"first in order", pod, newView(), "create 0; start s#0"},
		{"the next when it runs", pod, newView(ready(0), running("s")), "start i#0"},
		{"last one, then the regular", pod, newView(ready(0), running("s"), exited("i", 0)), "start z#0"},
		{"regular when all have started", pod, newView(ready(0), running("s"), exited("i", 0), running("z")), "start a#0"},
		{"the next while it is replaced, once it has started", pod, newView(ready(0), running("s"), unwell("s#0")), "kill s#0; start s#1 step 1; start i#0"},
		{"the next while it is held back after that", pod, newView(ready(0), running("s", step(1), since(time.Minute)), unwell("s#0")), "kill s#0; start i#0"},
		{"the next while it is made as the changed spec has it", pod, newView(ready(0), running("s", hash("s1-old"))), "kill s#0; start s#1; start i#0"},
		{"not the next once it has ended", pod, newView(ready(0), exited("s", 137, step(1), ended(4*time.Second))), "wait s 6s"},
		{"not the next while its state is unknown", pod, newView(ready(0), observed("s", 0, runtime.Unknown)), "kill s#0; start s#1 step 1"},
		{"startup probe not passed", probed1, newView(ready(0), running("s")), ""},
		{"startup probe passed", probed1, newView(ready(0), running("s"), started("s#0")), "start z#0"},
		{
			// Upstream: a result of the former container let the next one pass.
			"a former container's probe does not count", probed1,
			newView(ready(0), exited("s", 1), started("s#0"), running("s", attempt(1))), "",
		},
		{
			"startup probe not passed when it is replaced", probed1, newView(ready(0), running("s", hash("s1-old"))),
			"kill s#0; start s#1",
		},
		{
			"startup probe failed", probed1,
			newView(ready(0), running("s"), probed("s#0", runtime.ProbeResults{Startup: runtime.ProbeFailure})), "kill s#0; start s#1 step 1",
		},
		{"ended while an init container runs", pod, newView(ready(0), exited("s", 0), running("i")), "start s#1 step 1"},
		{"restarts whatever the policy", newPod(never, sidecarC("s"), regular("a")), newView(ready(0), exited("s", 0), running("a")), "start s#1 step 1"},
		{"with its back-off", pod, newView(ready(0), exited("s", 1, step(2), ended(5*time.Second)), exited("i", 0), running("z"), running("a")), "wait s 15s"},
		{
			// Upstream: regular containers were forgotten while a sidecar ran.
			"regular ones restart while sidecars run", pod,
			newView(ready(0), running("s"), exited("i", 0), running("z"), exited("a", 1)), "start a#1 step 1",
		},
		{"liveness", pod, newView(ready(0), running("s"), exited("i", 0), running("z"), running("a"), unwell("s#0")), "kill s#0; start s#1 step 1"},
		{"collected while the regular ones run", pod, newView(ready(0), running("z"), running("a")), "start s#0"},
		{"unknown", pod, newView(ready(0), observed("s", 0, runtime.Unknown), exited("i", 0), running("z"), running("a")), "kill s#0; start s#1 step 1"},
		{"not started again when the pod is done", newPod(never, sidecarC("s"), regular("a")), newView(ready(0), exited("s", 137), exited("a", 0)), "stop s0"},
		{"changed spec", pod, newView(ready(0), running("s", hash("s1-old")), exited("i", 0), running("z"), running("a")), "kill s#0; start s#1"},
	})
}

// since lets it have started that long before now.
func since(d time.Duration) func(*runtime.Container) {
	return func(c *runtime.Container) { c.Started = testTime.Add(-d) }
}

func oomKilled(c *runtime.Container) { c.Reason = runtime.ReasonOOMKilled }

func hash(h string) func(*runtime.Container) { return func(c *runtime.Container) { c.Hash = h } }

// RT-7
func TestEphemeralContainers(t *testing.T) {
	pod := newPod(always, initC("i"), regular("a"), ephemeralC("debug"))
	testPlans(t, []planCase{
		{"with the sandbox", pod, newView(), "create 0; start debug#0; start i#0"},
		{"while init containers run", pod, newView(ready(0), running("i")), "start debug#0"},
		{"not again after its end", pod, newView(ready(0), exited("i", 0), running("a"), exited("debug", 1)), ""},
		{"not again after a new sandbox", pod, newView(exitedSandbox(0), exited("debug", 137)), "stop s0; create 1; start i#0"},
		{"not again when the runtime forgot it", pod, newView(ready(0), running("a"), restarts("debug", 0)), ""},
		{"made but not started", pod, newView(ready(0), running("i"), observed("debug", 0, runtime.Created)), "remove debug#0; start debug#0"},
		{"made but not started, and its number known", pod, newView(ready(0), running("i"), observed("debug", 0, runtime.Created), restarts("debug", 0)), "remove debug#0; start debug#0"},
		{"unknown is left alone", pod, newView(ready(0), running("a"), observed("debug", 0, runtime.Unknown)), ""},
		{"does not keep a pod that is done", newPod(never, regular("a"), ephemeralC("debug")), newView(ready(0), exited("a", 0), running("debug")), "kill debug#0; stop s0"},
	})
}

// RT-7: an ephemeral container that is to see another one's processes waits for
// that one, and delays no other meanwhile.
func TestEphemeralContainersWithATarget(t *testing.T) {
	pod := newPod(always, initC("i"), regular("a"), debugC("debug", "a"))
	testPlans(t, []planCase{
		{"while the sandbox is made", pod, newView(), "create 0; start i#0; wait debug"},
		{"while init containers run", pod, newView(ready(0), running("i")), "wait debug"},
		{"while the target is started", pod, newView(ready(0), exited("i", 0)), "start a#0; wait debug"},
		{"made but not started", pod, newView(ready(0), exited("i", 0), observed("a", 0, runtime.Created)), "remove a#0; start a#0; wait debug"},
		{"as soon as it runs", pod, newView(ready(0), exited("i", 0), running("a")), "start debug#0"},
		{"before others of the same plan", newPod(always, regular("a"), regular("b"), debugC("debug", "a")), newView(ready(0), running("a")), "start debug#0; start b#0"},
		{"while its back-off runs", pod, newView(ready(0), exited("i", 0), exited("a", 1, step(1), ended(2*time.Second))), "wait a 8s; wait debug"},
		{"while it is restarted", pod, newView(ready(0), exited("i", 0), running("a", hash("s1-old"))), "kill a#0; start a#1; wait debug"},
		{"in a sandbox that is lost", pod, newView(exitedSandbox(0), running("a")), "kill a#0; stop s0; create 1; start i#0; wait debug"},
		{"of unknown state", pod, newView(ready(0), exited("i", 0), observed("a", 0, runtime.Unknown)), "kill a#0; start a#1 step 1; wait debug"},
		{"a sidecar", newPod(always, sidecarC("s"), initC("i"), regular("a"), debugC("debug", "s")), newView(ready(0), running("s")), "start debug#0; start i#0"},
		{"not again after its end", pod, newView(ready(0), exited("i", 0), running("a"), exited("debug", 0)), ""},
		{"made but not started, and the target gone", pod, newView(ready(0), exited("i", 0), exited("a", 0, step(1), ended(time.Second)), observed("debug", 0, runtime.Created)), "wait a 9s; wait debug"},
		{"a target that is done for good", newPod(never, regular("a"), regular("b"), debugC("debug", "a")), newView(ready(0), exited("a", 0), running("b")), "wait debug"},
		{"of a pod that is done", newPod(never, regular("a"), debugC("debug", "a")), newView(ready(0), exited("a", 0)), "stop s0"},
	})
	for _, a := range runtime.Plan(pod, newView(ready(0), running("i")), testTime) {
		assert.Equal(t, runtime.ReasonTargetNotRunning, a.Reason)
		assert.Contains(t, a.Message, `"a"`)
	}
}
