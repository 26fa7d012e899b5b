package status_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

var update = flag.Bool("update", false, "write the golden files")

// goldenStep is one look at a pod in a story.
type goldenStep struct {
	what   string
	report runtime.Report
}

func observed(what string, containers ...runtime.Container) goldenStep {
	return goldenStep{what, runtime.Report{Observed: view(containers...)}}
}

func (m goldenStep) failing(name, reason, message string) goldenStep {
	m.report.Failures = map[string]runtime.Failure{name: {Reason: reason, Message: message}}
	return m
}

func (m goldenStep) probed(ready runtime.ProbeResult) goldenStep {
	m.report.Probes = runtime.PodProbeResults{"c-0": {Startup: runtime.ProbeSuccess, Readiness: ready, Liveness: runtime.ProbeSuccess}}
	return m
}

func (m goldenStep) termination(e runtime.Termination) goldenStep {
	m.report.Termination = &e
	return m
}

func (m goldenStep) finished() goldenStep {
	m.report.Finished = true
	return m
}

func (m goldenStep) blocked(reason, message string) goldenStep {
	m.report.Blocked = &runtime.Failure{Reason: reason, Message: message}
	return m
}

func (m goldenStep) noSandbox() goldenStep {
	m.report.Observed.Sandboxes = nil
	return m
}

func (m goldenStep) deadSandbox() goldenStep {
	m.report.Observed.Sandboxes = []runtime.Sandbox{{ID: "s0", State: runtime.SandboxNotReady}}
	return m
}

func probed(p *corev1.Pod, startup, readiness bool) *corev1.Pod {
	c := &p.Spec.Containers[0]
	if startup {
		c.StartupProbe = &corev1.Probe{}
	}
	if readiness {
		c.ReadinessProbe = &corev1.Probe{}
	}
	return p
}

// goldenCases are pod lifecycles, each shown as the sequence of its statuses.
func goldenCases() map[string]struct {
	pod     *corev1.Pod
	moments []goldenStep
} {
	type story = struct {
		pod     *corev1.Pod
		moments []goldenStep
	}
	evicted := runtime.Termination{Reason: "Evicted", Message: "The node was low on resource: memory. ", Evicted: true, GracePeriod: time.Second}
	deleted := runtime.Termination{Deleted: true, GracePeriod: 30 * time.Second}
	unproven, success, failed := runtime.ProbeUnknown, runtime.ProbeSuccess, runtime.ProbeFailure
	return map[string]story{
		"server": {pod("main:c"), []goldenStep{
			observed("first look").noSandbox(), observed("sandbox is ready"), observed("created", created("c", 0)), observed("started", running("c", 0)),
			observed("told to end", running("c", 0)).termination(deleted), observed("ended", exited("c", 0, 143)).termination(deleted),
			observed("gone").noSandbox().termination(deleted).finished(),
		}},
		"crash-loop": {pod("main:c"), []goldenStep{
			observed("started", running("c", 0)), observed("crashed", exited("c", 0, 1)),
			observed("waits", exited("c", 0, 1)).failing("c", "CrashLoopBackOff", "back-off 10s"),
			observed("started again", running("c", 1), exited("c", 0, 1)).failing("c", "CrashLoopBackOff", "left over"),
			observed("crashed again", exited("c", 1, 2), exited("c", 0, 1)),
			observed("waits again, the first attempt is collected", exited("c", 1, 2)).failing("c", "CrashLoopBackOff", "back-off 20s"),
			observed("runs at last", running("c", 2), exited("c", 1, 2)),
		}},
		"image-trouble": {pod("main:c", "main:d"), []goldenStep{
			observed("pull fails", running("d", 0)).failing("c", "ErrImagePull", "no such image"),
			observed("pull waits", running("d", 0)).failing("c", "ImagePullBackOff", "Back-off pulling image"),
			observed("pulled", running("c", 0), running("d", 0)),
		}},
		"job": {pod("policy=Never", "main:c", "main:d"), []goldenStep{
			observed("both run", running("d", 0), running("c", 0)), observed("one is done", running("d", 0), exited("c", 0, 0)),
			observed("both are done", exited("d", 0, 0), exited("c", 0, 0)), observed("containers are collected"),
		}},
		"failed-job": {pod("policy=Never", "main:c", "main:d"), []goldenStep{
			observed("one failed", running("d", 0), exited("c", 0, 3)), observed("the other is done", exited("d", 0, 0), exited("c", 0, 3)),
		}},
		"on-failure": {pod("policy=OnFailure", "main:c"), []goldenStep{
			observed("failed", exited("c", 0, 1)), observed("runs again", running("c", 1), exited("c", 0, 1)), observed("done", exited("c", 1, 0), exited("c", 0, 1)),
		}},
		"init-chain": {pod("init:i", "init:j", "main:c"), []goldenStep{
			observed("sandbox is ready"), observed("first runs", running("i", 0)), observed("first is done", exited("i", 0, 0)),
			observed("second fails", exited("j", 0, 1), exited("i", 0, 0)).failing("j", "CrashLoopBackOff", "back-off 10s"),
			observed("second runs again", running("j", 1), exited("j", 0, 1), exited("i", 0, 0)),
			observed("second is done", exited("j", 1, 0), exited("i", 0, 0)), observed("runs", running("c", 0), exited("j", 1, 0), exited("i", 0, 0)),
			observed("init containers are collected", running("c", 0)),
		}},
		"init-fails-for-good": {pod("policy=Never", "init:i", "main:c"), []goldenStep{
			observed("runs", running("i", 0)), observed("failed", exited("i", 0, 7)), observed("later", exited("i", 0, 7)).noSandbox(),
		}},
		"sidecar": {pod("policy=Never", "sidecar:s", "init:i", "main:c"), []goldenStep{
			observed("sidecar runs", running("s", 0)), observed("init runs", running("i", 0), running("s", 0)),
			observed("all run", running("c", 0), exited("i", 0, 0), running("s", 0)),
			observed("sidecar crashed", running("c", 0), exited("i", 0, 0), exited("s", 0, 1)),
			observed("main is done, sidecar runs again", exited("c", 0, 0), running("s", 1), exited("s", 0, 1), exited("i", 0, 0)),
			observed("sidecar ended", exited("c", 0, 0), exited("s", 1, 0), exited("i", 0, 0)),
		}},
		"probed": {probed(pod("main:c"), true, true), []goldenStep{
			observed("started, no probe has spoken", running("c", 0)), observed("startup passed", running("c", 0)).probed(unproven),
			observed("ready", running("c", 0)).probed(success), observed("not ready", running("c", 0)).probed(failed),
			observed("ready again", running("c", 0)).probed(success),
			observed("a new agent, no probe has spoken", running("c", 0)), observed("restarted", running("c", 1), exited("c", 0, 137)),
		}},
		"evicted": {pod("main:c"), []goldenStep{
			observed("runs", running("c", 0)), observed("told to go", running("c", 0)).termination(evicted), observed("killed", exited("c", 0, 137)).termination(evicted),
			observed("gone").noSandbox().termination(evicted).finished(),
		}},
		"evicted-before-start": {pod("init:i", "main:c"), []goldenStep{
			observed("sandbox is ready"), observed("told to go").termination(evicted), observed("gone").noSandbox().termination(evicted).finished(),
		}},
		"vanished": {pod("main:c"), []goldenStep{
			observed("runs", running("c", 0)), observed("the runtime lost everything").noSandbox(), observed("runs anew", running("c", 1)),
		}},
		"unknown": {pod("main:c"), []goldenStep{
			observed("runs", running("c", 0)), observed("the runtime lost track", unknown("c", 0)), observed("found again", running("c", 0)),
			observed("lost track again", unknown("c", 0)), observed("it had ended", exited("c", 0, 5)),
		}},
		"blocked": {pod("main:c"), []goldenStep{
			observed("blocked").noSandbox().blocked("AppArmor", "profile is not loaded"), observed("let in", running("c", 0)),
		}},
		"debugged": {pod("policy=Never", "main:c", "debug:d"), []goldenStep{
			observed("debugging", running("d", 0), running("c", 0)), observed("main is done, debugging goes on", running("d", 0), exited("c", 0, 0)),
			observed("both are done", exited("d", 0, 0), exited("c", 0, 0)),
		}},
		"new-sandbox": {pod("init:i", "main:c"), []goldenStep{
			observed("runs", running("c", 0), exited("i", 0, 0)), observed("sandbox died", exited("c", 0, 137), exited("i", 0, 0)).deadSandbox(),
			observed("init runs again", running("i", 1), exited("c", 0, 137), exited("i", 0, 0)), observed("runs again", running("c", 1), exited("i", 1, 0), exited("c", 0, 137)),
		}},
		"rules": {withRule(pod("policy=Never", "main:c/Never"), corev1.ContainerRestartRuleOnExitCodesOpIn, 42), []goldenStep{
			observed("asks to be restarted", exited("c", 0, 42)), observed("runs again", running("c", 1), exited("c", 0, 42)), observed("fails", exited("c", 1, 1), exited("c", 0, 42)),
		}},
	}
}

// ST-1..5: the sequences of statuses of pods of every kind. Run with -update to
// write them again, and review what changed.
func TestGenerate_Golden(t *testing.T) {
	for name, story := range goldenCases() {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			var previous corev1.PodStatus
			for i, m := range story.moments {
				st := status.Generate(story.pod, m.report, previous, status.NodeInfo{}, testTime.Add(time.Duration(i)*time.Second))
				write(&b, m.what, &st)
				previous = st
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), b.String())
		})
	}
}

// write formats a status in a few lines that people can read.
func write(b *strings.Builder, what string, st *corev1.PodStatus) {
	fmt.Fprintf(b, "%s\n  %s", what, st.Phase)
	if st.Reason != "" {
		fmt.Fprintf(b, " (%s: %s)", st.Reason, strings.TrimSpace(st.Message))
	}
	for _, c := range st.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.ContainersReady {
			continue
		}
		fmt.Fprintf(b, " %s=%s@%d", c.Type, c.Status, int(c.LastTransitionTime.Sub(testTime).Seconds()))
		if c.Reason != "" {
			fmt.Fprintf(b, "(%s)", c.Reason)
		}
	}
	b.WriteString("\n")
	for _, list := range lists(st) {
		for i := range list {
			c := &list[i]
			fmt.Fprintf(b, "    %-3s %s", c.Name, state(&c.State))
			if last := state(&c.LastTerminationState); last != "" {
				fmt.Fprintf(b, ", last %s", last)
			}
			fmt.Fprintf(b, ", restarts %d", c.RestartCount)
			if c.Started != nil && *c.Started {
				b.WriteString(", started")
			}
			if c.Ready {
				b.WriteString(", ready")
			}
			b.WriteString("\n")
		}
	}
}

func state(s *corev1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return "waiting " + s.Waiting.Reason
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s %d (%s)", s.Terminated.Reason, s.Terminated.ExitCode, s.Terminated.ContainerID)
	default:
		return ""
	}
}
