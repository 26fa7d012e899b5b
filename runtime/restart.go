package runtime

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// restarts applies the rules and policies to a container that exited by itself. The
// first rule that fits decides, else the container's own policy, else the pod's. It is
// not called for ephemeral containers. A rule that restarts all containers begins a
// new restart generation instead.
func restarts(pod *corev1.Pod, c *corev1.Container, kind ContainerType, last *Container) bool {
	done := succeeded(kind, last)
	switch {
	case kind == Init && done:
		return false // it completed
	case onRules(c, last.ExitCode) == corev1.ContainerRestartRuleActionRestart:
		return true
	}
	return onFailure(pod, c, !done)
}

// succeeded reports whether an exited container succeeded. An init container with an
// OOM-killed process did not, regardless of its exit code: a shell continues without
// its child, and its last command determines the exit code.
func succeeded(kind ContainerType, last *Container) bool {
	return last.ExitCode == 0 && (kind != Init || last.Reason != ReasonOOMKilled)
}

// onRules returns the action of the first rule that fits, or "".
func onRules(c *corev1.Container, exitCode int32) corev1.ContainerRestartRuleAction {
	for i := range c.RestartPolicyRules {
		if rule := &c.RestartPolicyRules[i]; known(rule.Action) && fits(rule.ExitCodes, exitCode) {
			return rule.Action
		}
	}
	return ""
}

func known(a corev1.ContainerRestartRuleAction) bool {
	return a == corev1.ContainerRestartRuleActionRestart || a == corev1.ContainerRestartRuleActionRestartAllContainers
}

func fits(codes *corev1.ContainerRestartRuleOnExitCodes, exitCode int32) bool {
	if codes == nil {
		return false
	}
	among := slices.Contains(codes.Values, exitCode)
	switch codes.Operator {
	case corev1.ContainerRestartRuleOnExitCodesOpIn:
		return among
	case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !among
	}
	return false
}

// onFailure applies only the policies: for a container whose exit code is unknown or
// that no rule matches. A sidecar always restarts, by its own policy Always.
func onFailure(pod *corev1.Pod, c *corev1.Container, failed bool) (restarts bool) {
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return failed
	case corev1.RestartPolicyAlways:
	}
	return true
}

// hasRestartAll reports whether a rule of the container may restart the pod.
func hasRestartAll(c *corev1.Container) bool {
	for i := range c.RestartPolicyRules {
		if c.RestartPolicyRules[i].Action == corev1.ContainerRestartRuleActionRestartAllContainers {
			return true
		}
	}
	return false
}
