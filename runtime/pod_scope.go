package runtime

import (
	corev1 "k8s.io/api/core/v1"
)

// podScope is where a pod stands: which of the containers that were seen count.
// Those of an older sandbox or of an older round have run, and their attempts
// and back-offs count, but what they did has to be done again.
type podScope struct {
	pod      *corev1.Pod
	seen     *Pod
	probes   PodProbeResults
	sandbox  *Sandbox // the newest; nil if there is none
	unusable string   // why sandbox cannot be used, or ""
	round    uint32   // that containers are started in
}

func newScope(pod *corev1.Pod, seen *Pod, probes PodProbeResults) *podScope {
	s := &podScope{pod: pod, seen: seen, probes: probes}
	s.sandbox, s.unusable = decideRestart(pod, seen)
	for i := range seen.Containers {
		s.round = max(s.round, seen.Containers[i].RestartGeneration)
	}
	for c, kind := range ContainerSpecs(pod) {
		if last := s.last(c.Name); kind != Ephemeral && last != nil && last.RestartGeneration == s.round && s.triggers(c, last) {
			s.round++
			break
		}
	}
	return s
}

// SandboxReason returns why Plan makes a new sandbox for a pod that is not done:
// ReasonSandboxLost (there is none that is ready), ReasonManySandboxes,
// ReasonNetworkMode or ReasonNoAddress, or "" if containers can run in the newest.
// A listing tells of neither network nor addresses. It is pure.
func SandboxReason(pod *corev1.Pod, seen *Pod) string {
	_, unusable := decideRestart(pod, seen)
	return unusable
}

// decideRestart returns the newest sandbox and why it cannot be used.
func decideRestart(pod *corev1.Pod, seen *Pod) (newest *Sandbox, unusable string) {
	ready := 0
	for i := range seen.Sandboxes {
		s := &seen.Sandboxes[i]
		if newest == nil || s.Attempt > newest.Attempt {
			newest = s
		}
		if s.State == SandboxReady {
			ready++
		}
	}
	inspected := !seen.ObservedAt.IsZero()
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

// last returns the container of that name with the highest attempt, or nil. It
// does not go by time: clocks jump.
func (s *podScope) last(name string) *Container {
	var last *Container
	for i := range s.seen.Containers {
		if c := &s.seen.Containers[i]; c.Name == name && (last == nil || c.Attempt > last.Attempt) {
			last = c
		}
	}
	return last
}

// isCurrent reports whether c belongs to the newest sandbox and the round at hand. A
// runtime that does not tell sandboxes apart has but one.
func (s *podScope) isCurrent(c *Container) bool {
	return c.RestartGeneration >= s.round && s.inSandbox(c)
}

func (s *podScope) inSandbox(c *Container) bool {
	return s.sandbox != nil && (c.SandboxID == s.sandbox.ID || c.SandboxID == "")
}

// current returns the last container of that name if it is here, or nil.
func (s *podScope) current(name string) *Container {
	if c := s.last(name); c != nil && s.isCurrent(c) {
		return c
	}
	return nil
}

// triggers reports whether the end of c restarts the whole pod.
func (s *podScope) triggers(c *corev1.Container, last *Container) bool {
	return last.State == Exited && onRules(c, last.ExitCode) == corev1.ContainerRestartRuleActionRestartAllContainers
}

// unhealthy reports whether a probe has failed that ends its container, and
// which.
func (s *podScope) unhealthy(c *Container) (probe string, yes bool) {
	switch v := s.probes[c.ID]; {
	case v.Liveness == ProbeFailure:
		return "liveness", true
	case v.Startup == ProbeFailure:
		return "startup", true
	}
	return "", false
}

// isDone reports whether nothing is left to do for a container: it ended and is
// not to start again. Whatever runs in a sandbox that is lost is about to end,
// and counts as failed.
func (s *podScope) isDone(c *corev1.Container, kind ContainerType, last *Container) bool {
	switch {
	case last == nil || last.State == Created:
		return false
	case last.RestartGeneration < s.round:
		return false
	case last.State != Exited && s.usable(last):
		// An init container that the runtime lost track of may have half done its
		// work; a regular one is ended and starts again under any policy.
		return last.State == Unknown && kind == Init && !onFailure(s.pod, c, true)
	case last.State != Exited:
		return !onFailure(s.pod, c, true)
	}
	if _, failed := s.unhealthy(last); failed && last.ExitCode == 0 {
		// It ended well because it was told to; the probe says that it was not.
		return !onFailure(s.pod, c, true)
	}
	return !startsAgain(s.pod, c, kind, last)
}

// usable reports whether c is in a sandbox that containers can run in.
func (s *podScope) usable(c *Container) bool { return s.unusable == "" && s.inSandbox(c) }

// Initialized reports whether a regular container of the pod was created in its newest
// sandbox, and since the last restart of all its containers. Plan then takes every
// init container as done, whatever the runtime still knows of it. It is pure.
func Initialized(pod *corev1.Pod, seen *Pod) bool { return newScope(pod, seen, nil).initialized() }

// initialized reports whether every init container is done: regular ones are
// not made before. It does not ask for the init containers themselves, which
// may be long collected.
func (s *podScope) initialized() bool {
	for i := range s.pod.Spec.Containers {
		if s.current(s.pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// failedInit returns the init container that failed for good, or nil.
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

// IsTerminal reports whether a pod is done: every regular container ended for good,
// or an init container failed for good, so that nothing will ever be started
// for it. Sidecars and ephemeral containers may still run. The phase is
// Succeeded or Failed when it is done and "" otherwise.
func IsTerminal(pod *corev1.Pod, seen Pod) (bool, corev1.PodPhase) {
	return newScope(pod, &seen, nil).done()
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
