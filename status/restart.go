package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// mayRestart reports whether a container with that termination is started again by
// the pod's policy, its own policy or one of its rules. unhealthy: it was stopped because a probe
// had failed, and is no success whatever its exit code. For an init container that
// succeeded, a rule that restarts all containers is restartsWithAll's decision.
func mayRestart(pod *corev1.Pod, c *corev1.Container, end *corev1.ContainerStateTerminated, unhealthy bool) bool {
	failed := end.ExitCode != 0 || unhealthy
	if isInit(pod, c) && !podspec.IsSidecar(c) {
		if initSucceeded(end) {
			return false // one success is enough
		}
		failed = true
	}
	return podspec.RestartRuleAction(c, end.ExitCode) != "" || podspec.RestartsByPolicy(pod, c, failed)
}

// runsOnceMore reports whether an init container that has completed has to run in the present sandbox too.
func (g *generator) runsOnceMore(s slot) bool {
	sandbox := g.report.Observed.ReadySandbox()
	if s.kind != runtime.Init || sandbox == nil || g.initDone {
		return false
	}
	newest := g.report.Observed.LatestContainer(s.c.Name)
	return newest == nil || newest.SandboxID != sandbox.ID
}

// restartsAsFailed reports whether a container starts again because it has failed although its exit code
// is 0. It is never reported as terminated: by exit code and policy it is done then, and an API server
// rejects every later status in which it is not.
func (g *generator) restartsAsFailed(s slot, end *corev1.ContainerStateTerminated) bool {
	return end != nil && end.ExitCode == 0 && s.kind != runtime.Ephemeral &&
		podspec.RestartRuleAction(s.c, 0) == "" && !podspec.RestartsByPolicy(g.pod, s.c, false) &&
		mayRestart(g.pod, s.c, end, g.unhealthy(s.c.Name))
}

// wasBlocked reports whether a container was stopped because its pod has to wait, and would not start again by
// its exit code and the policy. It is not reported as terminated either, unless it was already.
func (g *generator) wasBlocked(s slot, end *corev1.ContainerStateTerminated) bool {
	if g.report.Blocked == nil || end == nil || s.kind != runtime.Regular || mayRestart(g.pod, s.c, end, false) {
		return false
	}
	previous := g.previousOf(s)
	return previous == nil || previous.State.Terminated == nil
}

// keepEnds keeps each reported termination of a container that was done by its exit code and policy.
// If it starts once more, because its pod was blocked or has a new sandbox, it stays in that state,
// and is not ready, until it has ended: an API server rejects every status in which it is not. The
// phase follows from its real state, and so does the condition Initialized.
func (g *generator) keepEnds(slots []slot, list []corev1.ContainerStatus) {
	for _, s := range slots {
		previous, cs := g.previousOf(s), find(list, s.c.Name)
		if previous == nil || cs == nil || previous.State.Terminated == nil || cs.State.Terminated != nil || g.mayLeave(s, previous.State.Terminated) {
			continue
		}
		started := false
		cs.State, cs.LastTerminationState = previous.State, previous.LastTerminationState
		cs.ContainerID, cs.ImageID, cs.Ready, cs.Started = previous.ContainerID, previous.ImageID, false, &started
	}
}

// mayLeave reports whether a container may leave the state Terminated by its exit code and policy.
func (g *generator) mayLeave(s slot, end *corev1.ContainerStateTerminated) bool {
	if s.kind == runtime.Ephemeral {
		return false
	}
	return g.all.Configured || podspec.RestartRuleAction(s.c, end.ExitCode) != "" || podspec.RestartsByPolicy(g.pod, s.c, end.ExitCode != 0)
}

// initSucceeded reports whether an init container with that termination succeeded.
// One that lost a process to the OOM killer did not, as in runtime.Plan.
func initSucceeded(end *corev1.ContainerStateTerminated) bool {
	return end.ExitCode == 0 && end.Reason != runtime.ReasonOOMKilled
}

func isInit(pod *corev1.Pod, c *corev1.Container) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return true
		}
	}
	return false
}
