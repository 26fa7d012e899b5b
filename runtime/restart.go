package runtime

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// verdict says what the end of a container leads to.
type verdict uint8

const (
	stay       verdict = iota // it is done for good
	restart                   // it starts again
	restartAll                // the whole pod starts again
)

// onExit applies the rules and policies to a container that ended by itself.
// The first rule that fits decides; without one the container's own policy
// does, and without that the pod's. It is not asked of ephemeral containers.
func onExit(pod *corev1.Pod, c *corev1.Container, kind Kind, last *Container) verdict {
	switch ruled := onRules(c, last.ExitCode); {
	case ruled == restartAll:
		return restartAll
	case kind == Init && succeeded(kind, last):
		return stay // it has done its work
	case ruled == restart:
		return restart
	}
	return onFailure(pod, c, !succeeded(kind, last))
}

// succeeded reports whether a container that exited did its work. An init container
// of which a process was killed for lack of memory did not, whatever it exited with:
// a shell goes on without its child, and its last command gives the exit code.
func succeeded(kind Kind, last *Container) bool {
	return last.ExitCode == 0 && (kind != Init || last.Reason != ReasonOOMKilled)
}

func onRules(c *corev1.Container, exitCode int32) verdict {
	for i := range c.RestartPolicyRules {
		rule := &c.RestartPolicyRules[i]
		if !fits(rule.ExitCodes, exitCode) {
			continue
		}
		switch rule.Action {
		case corev1.ContainerRestartRuleActionRestart:
			return restart
		case corev1.ContainerRestartRuleActionRestartAllContainers:
			return restartAll
		}
	}
	return stay
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

// onFailure applies the policies alone: for a container whose exit code is not
// known, or that no rule speaks of. A sidecar is one by its own policy, Always.
func onFailure(pod *corev1.Pod, c *corev1.Container, failed bool) verdict {
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch {
	case policy == corev1.RestartPolicyNever:
		return stay
	case policy == corev1.RestartPolicyOnFailure && !failed:
		return stay
	}
	return restart
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
