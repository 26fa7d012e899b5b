package status

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// mayRestart reports whether a container that ended with that exit code is
// started again by the pod's policy, the container's own, or one of its rules.
func mayRestart(pod *corev1.Pod, c *corev1.Container, exitCode int32) bool {
	for i := range c.RestartPolicyRules {
		if ruleFits(&c.RestartPolicyRules[i], exitCode) {
			return true
		}
	}
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch {
	case policy == corev1.RestartPolicyNever:
		return false
	case policy == corev1.RestartPolicyOnFailure:
		return exitCode != 0
	case isInit(pod, c) && !podspec.IsSidecar(c):
		return exitCode != 0 // once through is enough
	default:
		return true
	}
}

// ruleFits reports whether a rule asks for a restart. Both actions that there
// are do.
func ruleFits(rule *corev1.ContainerRestartRule, exitCode int32) bool {
	if rule.ExitCodes == nil {
		return false
	}
	in := slices.Contains(rule.ExitCodes.Values, exitCode)
	switch rule.ExitCodes.Operator {
	case corev1.ContainerRestartRuleOnExitCodesOpIn:
		return in
	case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !in
	default:
		return false
	}
}

func isInit(pod *corev1.Pod, c *corev1.Container) bool {
	for i := range pod.Spec.InitContainers {
		if &pod.Spec.InitContainers[i] == c || pod.Spec.InitContainers[i].Name == c.Name {
			return true
		}
	}
	return false
}
