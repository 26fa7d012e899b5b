package runtime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

type planCase struct {
	name string
	pod  *corev1.Pod
	seen runtime.View
	want string // as show writes it
}

func testPlans(t *testing.T, cases []planCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, show(runtime.Plan(tt.pod, tt.seen, t0)))
		})
	}
}

// RT-2, RT-3
func TestSandbox(t *testing.T) {
	two := newPod(always, regular("a"), regular("b"))
	testPlans(t, []planCase{
		{"none yet", two, newView(), "create 0; start a#0; start b#0"},
		{"all well", two, newView(ready(0), running("a"), running("b")), ""},
		{"all well, told in another order", newPod(always, regular("a")), newView(ready(1), running("a"), gone(0)), ""},
		{
			// The clock was set back in between: what is newer is told by the number.
			"all well, though the former one looks newer", newPod(always, regular("a")),
			newView(ready(0), running("a", attempt(1)), exited("a", 1)), "",
		},
		{
			"not ready any more", two, newView(gone(0), running("a"), exited("b", 137)),
			"kill a#0; stop s0; create 1; start a#1; start b#1 step 1",
		},
		{
			"several ready", two, newView(ready(0), running("a"), ready(1), running("b")),
			"kill b#0; kill a#0; stop s1; stop s0; create 2; start a#1; start b#1",
		},
		{
			"an older one is left", two, newView(gone(0), exited("a", 0), ready(1), running("a", attempt(1)), running("b")),
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
				func(v *runtime.View) { v.ObservedAt = time.Time{} }),
			"",
		},
		{
			"a listing tells of no network mode", newPod(always, regular("a"), hostNetwork),
			newView(ready(0), running("a"), func(v *runtime.View) { v.ObservedAt = time.Time{} }), "",
		},
		{
			"host network has no address", newPod(always, regular("a"), hostNetwork),
			newView(sandbox(0, runtime.SandboxReady, func(s *runtime.Sandbox) { s.IPs, s.HostNetwork = nil, true }), running("a")),
			"",
		},
		{"two that are not ready", two, newView(gone(0), gone(1)), "stop s1; create 2; start a#0; start b#0"},
		{"being deleted", newPod(always, regular("a"), deleted), newView(), ""},
		{
			"all done, no new one", newPod(never, regular("a"), regular("b")),
			newView(gone(0), exited("a", 0), exited("b", 1)), "",
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
			newView(gone(0), running("a"), running("s"), running("t")),
			"kill a#0; kill t#0 stage 1; kill s#0 stage 2; stop s0; create 1; start s#1",
		},
		{
			"never: what runs in a lost one is done", newPod(never, regular("a"), regular("b")),
			newView(gone(0), running("a"), exited("b", 0)), "kill a#0; stop s0",
		},
		{
			"never: what never ran still has its turn", newPod(never, regular("a"), regular("b")),
			newView(gone(0), exited("a", 0)), "stop s0; create 1; start b#0",
		},
		{
			"on failure: what succeeded is not run again", newPod(onFailure, regular("a"), regular("b")),
			newView(gone(0), exited("a", 0), running("b")), "kill b#0; stop s0; create 1; start b#1",
		},
		{
			"still runs in an older one", newPod(always, regular("a")),
			newView(gone(0), running("a"), ready(1)), "kill a#0; start a#1",
		},
	})
}
