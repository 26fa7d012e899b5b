package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// RestartRuleAction returns the action of the container's first restart rule that matches
// the exit code, or "". A rule with an unknown action or operator never matches.
func RestartRuleAction(c *corev1.Container, exitCode int32) corev1.ContainerRestartRuleAction {
	for i := range c.RestartPolicyRules {
		if rule := &c.RestartPolicyRules[i]; isKnownAction(rule.Action) && matchesExitCode(rule.ExitCodes, exitCode) {
			return rule.Action
		}
	}
	return ""
}

func isKnownAction(a corev1.ContainerRestartRuleAction) bool {
	return a == corev1.ContainerRestartRuleActionRestart || a == corev1.ContainerRestartRuleActionRestartAllContainers
}

func matchesExitCode(codes *corev1.ContainerRestartRuleOnExitCodes, exitCode int32) bool {
	if codes == nil {
		return false
	}
	found := slices.Contains(codes.Values, exitCode)
	switch codes.Operator {
	case corev1.ContainerRestartRuleOnExitCodesOpIn:
		return found
	case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !found
	}
	return false
}

// RestartsByPolicy reports whether the restart policy of the container, or else of the
// pod, restarts it after an exit. It is for a container whose exit code is unknown or
// matches no restart rule. A sidecar always restarts, by its own policy Always.
func RestartsByPolicy(pod *corev1.Pod, c *corev1.Container, failed bool) bool {
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
