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
	p.former = map[string]runtime.Verdict{}
	for _, list := range [][]corev1.ContainerStatus{former.InitContainerStatuses, former.ContainerStatuses} {
		for i := range list {
			if id, v, ok := told(&list[i]); ok {
				p.former[id] = v
			}
		}
	}
	for _, b := range p.probes {
		if b.tally.run == 0 {
			b.adopt()
		}
	}
}

// told returns what a status says of the container that ran then.
func told(cs *corev1.ContainerStatus) (id string, v runtime.Verdict, ok bool) {
	id = cs.ContainerID
	if _, bare, named := strings.Cut(id, "://"); named { // a runtime may tell no name
		id = bare
	}
	if id == "" || cs.State.Running == nil {
		return "", v, false
	}
	v = runtime.Verdict{Ready: runtime.Failed, Live: runtime.Success}
	if cs.Started != nil && *cs.Started {
		v.Started = runtime.Success
	}
	if cs.Ready {
		v.Ready = runtime.Success
	}
	return id, v, true
}

// adopt lets what was told of the container before be the result.
func (b *probe) adopt() {
	b.result = b.pod.unprobed(b.kind, b.id)
	if b.kind == Startup && b.result == runtime.Success {
		b.over = true
	}
}

// unprobed returns the result of a probe that has not run for that container.
func (p *pod) unprobed(k Kind, id string) runtime.Result {
	v, ok := p.former[id]
	switch {
	case ok && k == Startup:
		return v.Started
	case ok && k == Readiness:
		return v.Ready
	default:
		return initial(k)
	}
}

// Verdicts returns what is known of each running container of a pod, by its id.
// A probe that a container does not have counts as passed. It returns nil for a
// pod that was neither added nor adopted.
func (m *Manager) Verdicts(uid types.UID) runtime.Verdicts {
	view, _ := m.cfg.Seen.Get(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[uid]
	if p == nil || p.spec == nil && p.former == nil {
		return nil
	}
	vs := runtime.Verdicts{}
	for i := range view.Containers {
		c := &view.Containers[i]
		if c.State != runtime.Running {
			continue
		}
		if p.spec != nil {
			vs[c.ID] = p.verdict(c)
		} else if v, ok := p.former[c.ID]; ok {
			vs[c.ID] = v
		}
	}
	return vs
}

func (p *pod) verdict(c *runtime.Container) runtime.Verdict {
	v := runtime.Verdict{
		Started: p.result(Startup, c),
		Ready:   p.result(Readiness, c),
		Live:    p.result(Liveness, c),
	}
	if v.Started != runtime.Success && v.Ready == runtime.Success {
		v.Ready = runtime.Failed // what has not started is not ready
	}
	return v
}

func (p *pod) result(k Kind, c *runtime.Container) runtime.Result {
	b := p.probes[key{c.Name, k}]
	switch {
	case b == nil:
		return runtime.Success
	case b.id != c.ID:
		return p.unprobed(k, c.ID)
	default:
		return b.result
	}
}
