package status

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// health fills Started and Ready. Where no probe of this process has spoken,
// what was told of that same container holds, so that an agent that starts
// again takes no pod out of service.
func (g *generator) health(s slot, seen *runtime.Container, cs, former *corev1.ContainerStatus) {
	if s.kind == runtime.Ephemeral {
		return
	}
	running := cs.State.Running != nil
	var v runtime.ProbeResults
	if seen != nil {
		v = g.report.Probes[seen.ID]
	}
	same := cs.ContainerID == former.ContainerID
	wasStarted := same && former.Started != nil && *former.Started
	started := running && passed(v.Startup, s.c.StartupProbe, wasStarted)
	cs.Started = &started
	if s.kind == runtime.Init {
		cs.Ready = cs.State.Terminated != nil && initSucceeded(cs.State.Terminated)
		return
	}
	cs.Ready = started && passed(v.Readiness, s.c.ReadinessProbe, same && former.Ready)
}

// passed tells a probe's result: what it found, what was told as long as it
// has not spoken, and success where there is none.
func passed(found runtime.ProbeResult, probe *corev1.Probe, told bool) bool {
	switch {
	case probe == nil:
		return true
	case found == runtime.ProbeUnknown:
		return told
	default:
		return found == runtime.ProbeSuccess
	}
}
