package probe

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Adopt takes up what a former agent told of the containers of a pod. Those that
// still run keep being ready and started until a probe says otherwise. It may be
// called before or after Add.
func (m *Manager) Adopt(uid types.UID, former corev1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pod(uid)
	p.previous = map[string]runtime.ProbeResults{}
	for _, list := range [][]corev1.ContainerStatus{former.InitContainerStatuses, former.ContainerStatuses} {
		for i := range list {
			if id, v, ok := resultsFromStatus(&list[i]); ok {
				p.previous[id] = v
			}
		}
	}
	for _, b := range p.probes {
		if b.tally.run == 0 {
			b.adopt()
		}
	}
}

// resultsFromStatus returns what a status says of the container that ran then.
func resultsFromStatus(cs *corev1.ContainerStatus) (id string, v runtime.ProbeResults, ok bool) {
	id = cs.ContainerID
	if _, bare, named := strings.Cut(id, "://"); named { // a runtime may tell no name
		id = bare
	}
	if id == "" || cs.State.Running == nil {
		return "", v, false
	}
	v = runtime.ProbeResults{Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}
	if cs.Started != nil && *cs.Started {
		v.Startup = runtime.ProbeSuccess
	}
	if cs.Ready {
		v.Readiness = runtime.ProbeSuccess
	}
	return id, v, true
}

// adopt lets what was told of the container before be the result.
func (b *probe) adopt() {
	b.result = b.pod.withoutProbe(b.kind, b.id)
	if b.kind == Startup && b.result == runtime.ProbeSuccess {
		b.done = true
	}
}

// withoutProbe returns the result of a probe that has not run for that container.
func (p *pod) withoutProbe(k ProbeType, id string) runtime.ProbeResult {
	v, ok := p.previous[id]
	switch {
	case ok && k == Startup:
		return v.Startup
	case ok && k == Readiness:
		return v.Readiness
	default:
		return initial(k)
	}
}

// Results returns what is known of each running container of a pod, by its id.
// A probe that a container does not have counts as passed. It returns nil for a
// pod that was neither added nor adopted.
func (m *Manager) Results(uid types.UID) runtime.PodProbeResults {
	view, _ := m.cfg.PodCache.Get(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[uid]
	if p == nil || p.spec == nil && p.previous == nil {
		return nil
	}
	vs := runtime.PodProbeResults{}
	for i := range view.Containers {
		c := &view.Containers[i]
		if c.State != runtime.Running {
			continue
		}
		if p.spec != nil {
			vs[c.ID] = p.results(c)
		} else if v, ok := p.previous[c.ID]; ok {
			vs[c.ID] = v
		}
	}
	return vs
}

func (p *pod) results(c *runtime.Container) runtime.ProbeResults {
	v := runtime.ProbeResults{
		Startup:   p.result(Startup, c),
		Readiness: p.result(Readiness, c),
		Liveness:  p.result(Liveness, c),
	}
	if v.Startup != runtime.ProbeSuccess && v.Readiness == runtime.ProbeSuccess {
		v.Readiness = runtime.ProbeFailure // what has not started is not ready
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
