package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// health sets Started and Ready. Without a probe result in this process, the
// previous values of the same container are kept, so that a restarted agent takes
// no pod out of service.
func (g *generator) health(s slot, observed *runtime.Container, cs, previous *corev1.ContainerStatus) {
	if s.kind == runtime.Ephemeral {
		return
	}
	running := cs.State.Running != nil
	var v runtime.ProbeResults
	if observed != nil {
		v = g.report.Probes[observed.ID]
	}
	same := cs.ContainerID == previous.ContainerID
	wasStarted := same && previous.Started != nil && *previous.Started
	started := running && passed(v.Startup, s.c.StartupProbe, wasStarted)
	cs.Started = &started
	if s.kind == runtime.Init {
		cs.Ready = cs.State.Terminated != nil && initSucceeded(cs.State.Terminated)
		return
	}
	cs.Ready = started && passed(v.Readiness, s.c.ReadinessProbe, same && previous.Ready)
}

// passed reports whether a probe succeeded: previous as long as it has no result,
// and true without a probe.
func passed(found runtime.ProbeResult, probe *corev1.Probe, previous bool) bool {
	switch {
	case probe == nil:
		return true
	case found == runtime.ProbeUnknown:
		return previous
	default:
		return found == runtime.ProbeSuccess
	}
}
