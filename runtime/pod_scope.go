package runtime

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// podScope determines which observed containers are current. Of the containers of an
// older sandbox or restart generation only attempts and back-offs count: they have to
// run again.
type podScope struct {
	pod      *corev1.Pod
	observed *Pod
	probes   PodProbeResults
	sandbox  *Sandbox // the newest; nil if there is none
	unusable string   // why sandbox cannot be used, or ""
	round    uint32   // restart generation of new containers
}

func newScope(pod *corev1.Pod, observed *Pod, probes PodProbeResults) *podScope {
	s := &podScope{pod: pod, observed: observed, probes: probes}
	s.sandbox, s.unusable = decideRestart(pod, observed)
	begun := false // in the newest sandbox
	for i := range observed.Containers {
		s.round = max(s.round, observed.Containers[i].RestartGeneration)
		begun = begun || s.inSandbox(&observed.Containers[i])
	}
	for c, kind := range ContainerSpecs(pod) {
		last := s.last(c.Name)
		if kind == Ephemeral || last == nil || last.RestartGeneration < s.round || begun && !s.inSandbox(last) {
			continue // all have been restarted since, or run in a new sandbox
		}
		if s.triggers(c, last) && (kind == Regular || !s.wasDone(last.Finished)) { // the others are stopped when the pod is done
			s.round++
			break
		}
	}
	return s
}

// SandboxReason returns why Plan creates a new sandbox for a pod that is not terminal:
// ReasonSandboxLost (none is ready), ReasonMultipleSandboxes, ReasonNetworkModeChanged or
// ReasonNoPodIP, or "" if containers can run in the newest. A listing has neither the
// network mode nor addresses. It is pure.
func SandboxReason(pod *corev1.Pod, observed *Pod) string {
	_, unusable := decideRestart(pod, observed)
	return unusable
}

// decideRestart returns the newest sandbox and why it cannot be used.
func decideRestart(pod *corev1.Pod, observed *Pod) (newest *Sandbox, unusable string) {
	ready := 0
	for i := range observed.Sandboxes {
		s := &observed.Sandboxes[i]
		if newest == nil || s.Attempt > newest.Attempt {
			newest = s
		}
		if s.State == SandboxReady {
			ready++
		}
	}
	inspected := !observed.ObservedAt.IsZero()
	switch {
	case newest == nil || newest.State != SandboxReady:
		return newest, ReasonSandboxLost
	case ready > 1:
		return newest, ReasonMultipleSandboxes
	case inspected && newest.HostNetwork != pod.Spec.HostNetwork:
		return newest, ReasonNetworkModeChanged
	case inspected && !newest.HostNetwork && len(newest.IPs) == 0:
		return newest, ReasonNoPodIP
	}
	return newest, ""
}

// last returns the container of that name with the highest attempt, or nil. Times are
// not used, because clocks jump.
func (s *podScope) last(name string) *Container {
	var last *Container
	for i := range s.observed.Containers {
		if c := &s.observed.Containers[i]; c.Name == name && (last == nil || c.Attempt > last.Attempt) {
			last = c
		}
	}
	return last
}

// isCurrent reports whether c belongs to the newest sandbox and restart generation. A
// runtime without sandbox ids has only one.
func (s *podScope) isCurrent(c *Container) bool {
	return c.RestartGeneration >= s.round && s.inSandbox(c)
}

func (s *podScope) inSandbox(c *Container) bool {
	return s.sandbox != nil && (c.SandboxID == s.sandbox.ID || c.SandboxID == "")
}

// current returns the last container of that name if it is current, or nil.
func (s *podScope) current(name string) *Container {
	if c := s.last(name); c != nil && s.isCurrent(c) {
		return c
	}
	return nil
}

// triggers reports whether the exit of c restarts all containers.
func (s *podScope) triggers(c *corev1.Container, last *Container) bool {
	return last.State == Exited && podspec.RestartRuleAction(c, last.ExitCode) == corev1.ContainerRestartRuleActionRestartAllContainers
}

// unhealthy reports whether a liveness or startup probe has failed, and which.
func (s *podScope) unhealthy(c *Container) (probe string, yes bool) {
	switch v := s.probes[c.ID]; {
	case v.Liveness == ProbeFailure:
		return "liveness", true
	case v.Startup == ProbeFailure:
		return "startup", true
	}
	return "", false
}

// isDone reports whether a container exited and is not restarted. A container that runs
// in a lost sandbox is about to exit, and counts as failed.
func (s *podScope) isDone(c *corev1.Container, kind ContainerType, last *Container) bool {
	switch {
	case last == nil || last.State == Created:
		return false
	case last.RestartGeneration < s.round:
		return false
	case last.State != Exited && s.usable(last):
		// One that the runtime lost track of has failed. The rules of a regular one need its
		// exit code; an init container may be incomplete, whatever that is.
		return last.State == Unknown && !podspec.RestartsByPolicy(s.pod, c, true) && (kind == Init || len(c.RestartPolicyRules) == 0)
	case last.State != Exited:
		return !podspec.RestartsByPolicy(s.pod, c, true)
	}
	if s.probes[last.ID].IsUnhealthy() && last.ExitCode == 0 {
		// It exited with success because it was stopped, after its probe had failed.
		restart := podspec.RestartRuleAction(c, last.ExitCode) == corev1.ContainerRestartRuleActionRestart
		return !restart && !podspec.RestartsByPolicy(s.pod, c, true)
	}
	return !restarts(s.pod, c, kind, last)
}

// usable reports whether c is in a usable sandbox.
func (s *podScope) usable(c *Container) bool { return s.unusable == "" && s.inSandbox(c) }

// Initialized reports whether a regular container of the pod was created in its newest
// sandbox, and since the last restart of all its containers. Plan then takes every init
// container as completed, even if it is not in the runtime any more. It is pure.
func Initialized(pod *corev1.Pod, observed *Pod) bool {
	return newScope(pod, observed, nil).initialized()
}

// initialized reports whether every init container has completed: regular ones are not
// created before. It ignores the init containers themselves, which may be collected.
func (s *podScope) initialized() bool {
	for i := range s.pod.Spec.Containers {
		if s.current(s.pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// failedInit returns the init container that failed and is not restarted, or nil.
func (s *podScope) failedInit() *corev1.Container {
	if s.initialized() {
		return nil
	}
	for i := range s.pod.Spec.InitContainers {
		c := &s.pod.Spec.InitContainers[i]
		last := s.current(c.Name)
		if s.isDone(c, initKind(c), last) && (last.State != Exited || !succeeded(Init, last)) {
			return c
		}
	}
	return nil
}

// IsTerminal reports whether no container of the pod will be started any more: every
// regular container has exited, or an init container has failed, and is not restarted.
// Sidecars and ephemeral containers may still run. The phase is Succeeded or Failed for
// a terminal pod and "" otherwise.
func IsTerminal(pod *corev1.Pod, observed Pod) (bool, corev1.PodPhase) {
	return newScope(pod, &observed, nil).done()
}

// wasDone reports whether the pod is done and was so before the given time.
func (s *podScope) wasDone(at time.Time) bool {
	if done, _ := s.done(); !done {
		return false
	}
	ended := func(c *corev1.Container) bool {
		last := s.last(c.Name)
		return last.State == Exited && last.Finished.Before(at)
	}
	if c := s.failedInit(); c != nil {
		return ended(c)
	}
	for i := range s.pod.Spec.Containers {
		if !ended(&s.pod.Spec.Containers[i]) {
			return false
		}
	}
	return true
}

func (s *podScope) done() (bool, corev1.PodPhase) {
	if s.failedInit() != nil {
		return true, corev1.PodFailed
	}
	if len(s.pod.Spec.Containers) == 0 {
		return false, ""
	}
	phase := corev1.PodSucceeded
	for i := range s.pod.Spec.Containers {
		c := &s.pod.Spec.Containers[i]
		last := s.last(c.Name)
		if !s.isDone(c, Regular, last) {
			return false, ""
		}
		if last.State != Exited || last.ExitCode != 0 {
			phase = corev1.PodFailed
		}
	}
	return true, phase
}
