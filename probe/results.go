package probe

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Adopt restores results from the status of a pod that a previous process has saved.
// Containers that still run stay ready and started until a probe has another result. It
// may be called before or after AddPod.
func (m *Manager) Adopt(uid types.UID, status corev1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pod(uid)
	p.previous = map[string]runtime.ProbeResults{}
	for _, list := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for i := range list {
			if id, results, ok := resultsFromStatus(&list[i]); ok {
				p.previous[id] = results
			}
		}
	}
	for _, b := range p.probes {
		if b.counter.run == 0 {
			b.adopt()
		}
	}
}

// resultsFromStatus returns the results of the container of a status, by its id, if it runs. One that waits
// to be started again although it has exited with 0 may have been stopped for a probe.
func resultsFromStatus(cs *corev1.ContainerStatus) (id string, results runtime.ProbeResults, ok bool) {
	id = cs.ContainerID
	if _, bare, named := strings.Cut(id, "://"); named { // a runtime may have no name
		id = bare
	}
	if last := cs.LastTerminationState.Terminated; id != "" && cs.State.Waiting != nil && last != nil && last.ContainerID == cs.ContainerID && last.ExitCode == 0 {
		return id, runtime.ProbeResults{Startup: runtime.ProbeFailure, Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeFailure}, true
	}
	if id == "" || cs.State.Running == nil {
		return "", runtime.ProbeResults{}, false
	}
	results = runtime.ProbeResults{Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}
	if cs.Started != nil && *cs.Started {
		results.Startup = runtime.ProbeSuccess
	}
	if cs.Ready {
		results.Readiness = runtime.ProbeSuccess
	}
	return id, results, true
}

// adopt sets the result to the one that was restored for the container.
func (b *probe) adopt() {
	b.result = b.pod.withoutProbe(b.kind, b.id)
	if b.kind == Startup && b.result == runtime.ProbeSuccess {
		b.done = true
	}
}

// withoutProbe returns the result of a probe that has not run for the container.
func (p *pod) withoutProbe(k ProbeType, id string) runtime.ProbeResult {
	v, ok := p.previous[id]
	switch {
	case !ok:
		return initial(k)
	case k == Startup:
		return v.Startup
	case k == Readiness:
		return v.Readiness
	default:
		return v.Liveness
	}
}

// Results returns the results of all running containers of a pod, by container id, and of
// exited ones whose liveness or startup probe had failed. A probe that a container does not
// have counts as successful. It returns nil for a pod that was neither added nor adopted.
func (m *Manager) Results(uid types.UID) runtime.PodProbeResults {
	observed := m.cachedPod(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[uid]
	if p == nil || p.spec == nil && p.previous == nil {
		return nil
	}
	results := runtime.PodProbeResults{}
	for i := range observed.Containers {
		c := &observed.Containers[i]
		v, ok := p.previous[c.ID]
		if p.spec != nil {
			v, ok = p.results(c), true
		}
		if ok && (c.State == runtime.Running || v.IsUnhealthy()) {
			results[c.ID] = v
		}
	}
	return results
}

func (p *pod) results(c *runtime.Container) runtime.ProbeResults {
	v := runtime.ProbeResults{
		Startup:   p.result(Startup, c),
		Readiness: p.result(Readiness, c),
		Liveness:  p.result(Liveness, c),
	}
	if v.Startup != runtime.ProbeSuccess {
		v.Readiness = runtime.ProbeFailure // a container that has not started is not ready
	}
	return v
}

func (p *pod) result(k ProbeType, c *runtime.Container) runtime.ProbeResult {
	b := p.probes[key{c.Name, k}]
	switch {
	case b == nil:
		return runtime.ProbeSuccess
	case b.id != c.ID:
		return p.withoutProbe(k, c.ID)
	default:
		return b.result
	}
}
