package runtime

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// restarts applies the rules and policies to a container that exited by itself. The
// first rule that fits decides, else the container's own policy, else the pod's. It is
// not called for ephemeral containers. A rule that restarts all containers begins a
// new restart generation, or restarts its own after the sandbox of all was replaced.
func restarts(pod *corev1.Pod, c *corev1.Container, kind ContainerType, last *Container) bool {
	done := succeeded(kind, last)
	switch {
	case kind == Init && done:
		return false // it completed
	case podspec.RestartRuleAction(c, last.ExitCode) != "":
		return true
	}
	return podspec.RestartsByPolicy(pod, c, !done)
}

// succeeded reports whether an exited container succeeded. An init container with an
// OOM-killed process did not, regardless of its exit code: a shell continues without
// its child, and its last command determines the exit code.
func succeeded(kind ContainerType, last *Container) bool {
	return last.ExitCode == 0 && (kind != Init || last.Reason != ReasonOOMKilled)
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
