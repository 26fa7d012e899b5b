package runtime

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// ephemerals plans the start of ephemeral containers: once, and immediately regardless
// of the other containers. One with a target container waits until that runs.
func (p *planner) ephemerals() {
	for i := range p.pod.Spec.EphemeralContainers {
		spec := &p.pod.Spec.EphemeralContainers[i]
		c := ephemeral(spec)
		last := p.last(c.Name)
		if _, ran := p.view.Restarts[c.Name]; ran && last == nil || last != nil && last.State != Created {
			continue
		}
		if target := spec.TargetContainerName; target != "" && !p.runs(target) {
			p.waits = append(p.waits, Action{
				Type: Wait, Container: c.Name, ContainerType: Ephemeral, Reason: ReasonTargetNotRunning,
				Message: fmt.Sprintf("waits for container %q, whose processes it is to see, to run", target),
			})
			continue
		}
		p.restart(c, Ephemeral, last)
	}
}

// runs reports whether the container of that name runs and this plan does not kill it.
func (p *planner) runs(name string) bool {
	c := p.current(name)
	return c != nil && c.State == Running &&
		!slices.ContainsFunc(p.kills, func(a Action) bool { return a.ID == c.ID })
}

// initContainers plans the next step of the pod's initialization, and keeps the sidecars
// before it running. It reports whether regular containers may start.
func (p *planner) initContainers() bool {
	list := p.pod.Spec.InitContainers
	initialized := p.initialized()
	// All init containers before the last created one have completed, even if they are
	// not in the runtime any more: exited containers are collected.
	reached := len(list)
	for reached > 0 && p.current(list[reached-1].Name) == nil {
		reached--
	}
	for i := range list {
		c, kind := &list[i], initKind(&list[i])
		current := p.current(c.Name)
		switch {
		case initialized || i < reached-1:
			if kind == Sidecar {
				p.keep(c, kind)
			} else if !initialized && current != nil && current.State == Running {
				return false
			}
		case current == nil:
			p.restart(c, kind, p.last(c.Name))
			return false
		case kind == Sidecar:
			// Once it has started the next one may start, even if it is replaced.
			p.keep(c, kind)
			if !p.started(c, current) {
				return false
			}
		case !p.isDone(c, kind, current):
			p.keep(c, kind)
			return false
		}
	}
	return true
}

// started reports whether a container runs and has started: its startup probe has
// succeeded, or it has none. A probe without a result has not succeeded.
func (p *planner) started(c *corev1.Container, current *Container) bool {
	return current.State == Running && (c.StartupProbe == nil || p.probes[current.ID].Startup == ProbeSuccess)
}

// keep plans the actions for a container that should run, or should have completed.
func (p *planner) keep(c *corev1.Container, kind ContainerType) {
	last := p.last(c.Name)
	switch {
	case last != nil && last.State == Unknown && p.isCurrent(last): // also if it is not restarted: it may run
		p.replace(c, kind, last, ReasonUnknown, killMessage(c, kind, "has an unknown state", podspec.RestartsByPolicy(p.pod, c, true)), p.grace)
	case p.isDone(c, kind, last):
	case last == nil || !p.isCurrent(last) || !alive(last):
		p.restart(c, kind, last)
	case changed(p.pod, c, last, p.view.Injections[c.Name]) && kind != Init: // a running init container may complete
		p.kill(last, ReasonSpecChanged, killMessage(c, kind, "definition changed", true), p.grace)
		p.start(c, kind, 0, ReasonSpecChanged)
	default:
		if probe, failed := p.unhealthy(last); failed {
			message := killMessage(c, kind, "failed "+probe+" probe", podspec.RestartsByPolicy(p.pod, c, true))
			p.replace(c, kind, last, ReasonUnhealthy, message, p.probeGrace(c, probe))
			return
		}
		p.resize(c, kind, last)
	}
}

// killMessage is the message of the event of a kill, in the words of the kubelet.
func killMessage(c *corev1.Container, kind ContainerType, what string, restarts bool) string {
	if kind == Sidecar {
		return "Init container " + c.Name + " " + what
	}
	if restarts {
		what += ", will be restarted"
	}
	return "Container " + c.Name + " " + what
}

// replace plans to kill a running container that failed, and to start the next attempt
// if there is one and it has no back-off. If rules depend on the exit code, the next
// plan decides, because it has the exit code.
func (p *planner) replace(c *corev1.Container, kind ContainerType, last *Container, reason, message string, grace time.Duration) {
	p.kill(last, reason, message, grace)
	if !podspec.RestartsByPolicy(p.pod, c, true) || last.State == Running && len(c.RestartPolicyRules) > 0 {
		return
	}
	if step, delay := p.delay(c, last); delay == 0 || last.State == Unknown {
		p.start(c, kind, step+1, reason)
	}
}

// probeGrace returns the grace period of a container that is killed for a probe: that of
// the probe, or of the pod.
func (p *planner) probeGrace(c *corev1.Container, probe string) time.Duration {
	spec := c.LivenessProbe
	if probe == "startup" {
		spec = c.StartupProbe
	}
	if spec == nil || spec.TerminationGracePeriodSeconds == nil {
		return p.grace
	}
	return atLeastMinGrace(podspec.Seconds(*spec.TerminationGracePeriodSeconds))
}
