package runtime_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// What the plan tests are written with: pods and views in a few words, and
// plans as one line of text.

var testTime = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

type edit func(*corev1.Pod)

func newPod(policy corev1.RestartPolicy, edits ...edit) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"},
		Spec:       corev1.PodSpec{RestartPolicy: policy},
	}
	for _, e := range edits {
		e(pod)
	}
	podspec.Default(pod)
	return pod
}

type tweak func(*corev1.Container)

func spec(name string, tweaks []tweak) corev1.Container {
	c := corev1.Container{Name: name, Image: "img:1"}
	for _, t := range tweaks {
		t(&c)
	}
	return c
}

func initC(name string, tweaks ...tweak) edit {
	return func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, spec(name, tweaks)) }
}

func sidecarC(name string, tweaks ...tweak) edit {
	return initC(name, append([]tweak{policy(corev1.ContainerRestartPolicyAlways)}, tweaks...)...)
}

func regular(name string, tweaks ...tweak) edit {
	return func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, spec(name, tweaks)) }
}

func ephemeralC(name string) edit {
	return func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon(spec(name, nil)),
		})
	}
}

// debugC is an ephemeral container that wants to see the processes of target.
func debugC(name, target string) edit {
	return func(p *corev1.Pod) {
		ephemeralC(name)(p)
		p.Spec.EphemeralContainers[len(p.Spec.EphemeralContainers)-1].TargetContainerName = target
	}
}

func hostNetwork(p *corev1.Pod) { p.Spec.HostNetwork = true }

func deleted(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: testTime} }

func policy(p corev1.ContainerRestartPolicy) tweak {
	return func(c *corev1.Container) { c.RestartPolicy = &p }
}

func rule(action corev1.ContainerRestartRuleAction, op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) tweak {
	return func(c *corev1.Container) {
		c.RestartPolicyRules = append(c.RestartPolicyRules, corev1.ContainerRestartRule{
			Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes},
		})
	}
}

const (
	in               = corev1.ContainerRestartRuleOnExitCodesOpIn
	notIn            = corev1.ContainerRestartRuleOnExitCodesOpNotIn
	restartAction    = corev1.ContainerRestartRuleActionRestart
	restartAllAction = corev1.ContainerRestartRuleActionRestartAllContainers

	always    = corev1.RestartPolicyAlways
	onFailure = corev1.RestartPolicyOnFailure
	never     = corev1.RestartPolicyNever
)

func startupProbe(c *corev1.Container) {
	c.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ok"}}}}
}

func livenessProbe(grace int64) tweak {
	return func(c *corev1.Container) {
		c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ok"}}}}
		if grace > 0 {
			c.LivenessProbe.TerminationGracePeriodSeconds = &grace
		}
	}
}

// put is one thing seen.
type put func(*runtime.PlanInput)

// newView is an inspection of what is put in it; later puts are newer.
func newView(puts ...put) runtime.PlanInput {
	v := runtime.PlanInput{Pod: runtime.Pod{UID: "u1", Namespace: "ns", Name: "web", ObservedAt: testTime}, Probes: runtime.PodProbeResults{}}
	for _, p := range puts {
		p(&v)
	}
	return v
}

// sandbox puts a sandbox sN of attempt N.
func sandbox(n uint32, state runtime.SandboxState, tweaks ...func(*runtime.Sandbox)) put {
	return func(v *runtime.PlanInput) {
		s := runtime.Sandbox{ID: fmt.Sprintf("s%d", n), Attempt: n, State: state, IPs: []string{"10.0.0.1"}}
		for _, t := range tweaks {
			t(&s)
		}
		v.Sandboxes = append([]runtime.Sandbox{s}, v.Sandboxes...)
	}
}

func ready(n uint32) put         { return sandbox(n, runtime.SandboxReady) }
func exitedSandbox(n uint32) put { return sandbox(n, runtime.SandboxNotReady) }

// seen puts a container "name#attempt" into the newest sandbox so far. It began
// an hour before now and, if it ended, did so after a second.
func observed(name string, attempt uint32, state runtime.ContainerState, tweaks ...func(*runtime.Container)) put {
	return func(v *runtime.PlanInput) {
		c := runtime.Container{
			ID: fmt.Sprintf("%s#%d", name, attempt), Name: name, Attempt: attempt, State: state,
			Created: testTime.Add(-time.Hour + time.Duration(len(v.Containers))*time.Second),
		}
		if len(v.Sandboxes) > 0 {
			c.SandboxID = v.Sandboxes[0].ID
		}
		if state == runtime.Running || state == runtime.Exited {
			c.Started = c.Created
		}
		if state == runtime.Exited {
			c.Finished = c.Started.Add(time.Second)
		}
		for _, t := range tweaks {
			t(&c)
		}
		v.Containers = append([]runtime.Container{c}, v.Containers...)
	}
}

func running(name string, tweaks ...func(*runtime.Container)) put {
	return observed(name, 0, runtime.Running, tweaks...)
}

func exited(name string, code int32, tweaks ...func(*runtime.Container)) put {
	return observed(name, 0, runtime.Exited, append([]func(*runtime.Container){func(c *runtime.Container) { c.ExitCode = code }}, tweaks...)...)
}

func step(n int) func(*runtime.Container) { return func(c *runtime.Container) { c.BackOffStep = n } }

func round(n uint32) func(*runtime.Container) {
	return func(c *runtime.Container) { c.RestartGeneration = n }
}

func attempt(n uint32) func(*runtime.Container) {
	return func(c *runtime.Container) { c.Attempt, c.ID = n, fmt.Sprintf("%s#%d", c.Name, n) }
}

// ended lets it have run for a second until the given time before now.
func ended(ago time.Duration) func(*runtime.Container) {
	return func(c *runtime.Container) {
		c.Finished = testTime.Add(-ago)
		c.Started = c.Finished.Add(-time.Second)
		c.Created = c.Started
	}
}

func ranFor(d time.Duration) func(*runtime.Container) {
	return func(c *runtime.Container) { c.Started = c.Finished.Add(-d); c.Created = c.Started }
}

func probed(id string, v runtime.ProbeResults) put {
	return func(view *runtime.PlanInput) { view.Probes[id] = v }
}

func unwell(id string) put {
	return probed(id, runtime.ProbeResults{Startup: runtime.ProbeSuccess, Liveness: runtime.ProbeFailure})
}

func restarts(name string, n uint32) put {
	return func(v *runtime.PlanInput) {
		if v.Restarts == nil {
			v.Restarts = make(map[string]uint32)
		}
		v.Restarts[name] = n
	}
}

// show writes a plan in one line: "kill app#0; create 1; start app#1".
func show(plan []runtime.Action) string {
	var out []string
	for _, a := range plan {
		switch a.Type {
		case runtime.Wait:
			if a.Until.IsZero() {
				out = append(out, fmt.Sprintf("wait %s", a.Container))
				continue
			}
			out = append(out, fmt.Sprintf("wait %s %v", a.Container, a.Until.Sub(testTime)))
		case runtime.KillContainer:
			text := "kill " + a.ID
			if a.Stage > 0 {
				text += fmt.Sprintf(" stage %d", a.Stage)
			}
			out = append(out, text)
		case runtime.RemoveContainer:
			out = append(out, "remove "+a.ID)
		case runtime.KillSandbox:
			out = append(out, "stop "+a.ID)
		case runtime.CreateSandbox:
			out = append(out, fmt.Sprintf("create %d", a.Attempt))
		case runtime.StartContainer:
			text := fmt.Sprintf("start %s#%d", a.Container, a.Attempt)
			if a.BackOffStep > 0 {
				text += fmt.Sprintf(" step %d", a.BackOffStep)
			}
			if a.RestartGeneration > 0 {
				text += fmt.Sprintf(" round %d", a.RestartGeneration)
			}
			out = append(out, text)
		case runtime.UpdateResources:
			out = append(out, "update "+a.ID)
		}
	}
	return strings.Join(out, "; ")
}

// targetRuns checks that the container whose processes an ephemeral one is to see
// runs in the newest sandbox.
func (s *sim) targetRuns(name string) {
	for _, e := range s.pod.Spec.EphemeralContainers {
		if e.Name != name || e.TargetContainerName == "" {
			continue
		}
		require.True(s.t, slices.ContainsFunc(s.view.Containers, func(c runtime.Container) bool {
			return c.Name == e.TargetContainerName && c.State == runtime.Running && c.SandboxID == s.view.Sandboxes[0].ID
		}), "%s needs %s to run", name, e.TargetContainerName)
	}
}

// pressing is a plan without what waits for a container that may never run again.
func pressing(plan []runtime.Action) []runtime.Action {
	return slices.DeleteFunc(slices.Clone(plan), func(a runtime.Action) bool { return a.Reason == runtime.ReasonTargetNotRunning })
}
