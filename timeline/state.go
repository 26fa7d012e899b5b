package timeline

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// summary is what a person wants to know of a status at first sight.
type summary struct {
	state, message string
	health         Health
	ready          int
	restarts       int32
	containers     []Container
}

// States that kubectl has no constant for.
const (
	stateCompleted   = "Completed"
	stateError       = "Error"
	stateTerminating = "Terminating"
	stateCreating    = "ContainerCreating"
	stateInitWaiting = "PodInitializing"
	stateNotReady    = "NotReady"
)

// summarize condenses a status. It is pure. The state is that of kubectl's column STATUS,
// except that a pod that runs without being ready is NotReady.
func summarize(pod *corev1.Pod, st *corev1.PodStatus, terminating bool) summary {
	s := summary{state: string(st.Phase), message: st.Message}
	if st.Reason != "" {
		s.state = st.Reason
	}
	initializing := s.addInit(pod, st)
	s.addMain(st, initializing)
	for i := range st.EphemeralContainerStatuses {
		s.containers = append(s.containers, containerOf(&st.EphemeralContainerStatuses[i], "ephemeral"))
	}
	switch {
	case st.Phase == corev1.PodSucceeded:
		s.health = Completed
	case st.Phase == corev1.PodFailed:
		s.health = Failing
	case terminating:
		s.state, s.health = stateTerminating, Progressing
	case s.health == "" && st.Phase == corev1.PodRunning && s.ready == len(pod.Spec.Containers):
		s.health = Healthy
	case s.health == "" && s.state == string(corev1.PodRunning):
		s.state, s.health = stateNotReady, Progressing
	case s.health == "":
		s.health = Progressing
	}
	return s
}

// addInit adds the init containers, and reports whether they have yet to complete.
func (s *summary) addInit(pod *corev1.Pod, st *corev1.PodStatus) (initializing bool) {
	done := 0
	for i := range st.InitContainerStatuses {
		c := &st.InitContainerStatuses[i]
		sidecar := isSidecar(pod, c.Name)
		kind := "init"
		if sidecar {
			kind = "sidecar"
		}
		out := containerOf(c, kind)
		s.containers = append(s.containers, out)
		s.restarts += c.RestartCount
		switch {
		case initializing:
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0, sidecar && c.Started != nil && *c.Started:
			done++
		default:
			initializing = true
			if isFailure(c) {
				s.fail("Init:"+out.State, out.Message)
			}
		}
	}
	if initializing && s.health == "" && st.Reason == "" {
		s.state = fmt.Sprintf("Init:%d/%d", done, len(st.InitContainerStatuses))
	}
	return initializing
}

// addMain adds the containers that are neither init nor ephemeral ones.
func (s *summary) addMain(st *corev1.PodStatus, initializing bool) {
	for i := range st.ContainerStatuses {
		c := &st.ContainerStatuses[i]
		out := containerOf(c, "")
		s.containers = append(s.containers, out)
		s.restarts += c.RestartCount
		if c.Ready {
			s.ready++
		}
		switch {
		case initializing || st.Reason != "":
		case isFailure(c):
			s.fail(out.State, out.Message)
		case s.health == "" && c.State.Waiting != nil:
			s.state = out.State
		case s.health == "" && st.Phase == corev1.PodSucceeded:
			s.state = stateCompleted
		}
	}
}

// fail makes a pod a failing one. The first reason wins.
func (s *summary) fail(state, message string) {
	if s.health == "" {
		s.state, s.message, s.health = state, message, Failing
	}
}

// isFailure reports whether a container waits for something that may never come, or has
// failed.
func isFailure(c *corev1.ContainerStatus) bool {
	switch {
	case c.State.Waiting != nil:
		r := c.State.Waiting.Reason
		return r != "" && r != stateCreating && r != stateInitWaiting
	case c.State.Terminated != nil:
		return c.State.Terminated.ExitCode != 0
	}
	return false
}

// containerOf condenses the status of a container. What the container itself has written,
// its termination message, is left out.
func containerOf(c *corev1.ContainerStatus, kind string) Container {
	out := Container{
		Name: clip(c.Name, maxName), Type: kind, Image: clip(c.Image, maxImage), State: string(corev1.PodPending), Ready: c.Ready, Restarts: c.RestartCount,
	}
	switch s := c.State; {
	case s.Waiting != nil:
		out.State, out.Message = cmp.Or(s.Waiting.Reason, out.State), public(s.Waiting.Reason, s.Waiting.Message)
	case s.Running != nil:
		out.State = "Running"
	case s.Terminated != nil:
		out.State = s.Terminated.Reason
		if out.State == "" {
			out.State = stateCompleted
			if s.Terminated.ExitCode != 0 {
				out.State = stateError
			}
		}
		if s.Terminated.ExitCode != 0 {
			out.Message = fmt.Sprintf("exit code %d", s.Terminated.ExitCode)
		}
	}
	out.State, out.Message = clip(out.State, maxReason), clip(out.Message, maxMessage)
	return out
}

// public returns a message without what only the owner of the pod should read: that of a
// failed hook has its command and output.
func public(reason, message string) string {
	if reason == "PostStartHookError" {
		return "the postStart hook failed"
	}
	return message
}

func isSidecar(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name && podspec.IsSidecar(&c) })
}
