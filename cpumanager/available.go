package cpumanager

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// available is what one container of a pod can get. It is valid while m.mu is locked.
type available struct {
	cpus  topology.Set // all of them
	own   topology.Set // those that it has, or that are reserved for it
	ended topology.Set // those of init containers that have ended

	m         *Manager
	pod       types.UID
	container string
	lifetime  lifetime
}

// availableTo returns what a container can get. m.mu is locked.
func (m *Manager) availableTo(pod *corev1.Pod, container *corev1.Container) available {
	own := m.pods[pod.UID][container.Name].all().Minus(m.cfg.Reserved)
	ended := m.reusable(pod, container.Name)
	return available{
		cpus: m.free().Union(own).Union(ended), own: own, ended: ended,
		m: m, pod: pod.UID, container: container.Name, lifetime: lifetimeOf(pod, container),
	}
}

// fits reports whether these NUMA nodes have n CPUs, and the memory if that counts.
func (av available) fits(nodes topology.Set, n int, memory int64) bool {
	if av.cpus.Intersect(av.m.topology.CPUsOf(nodes)).Len() < n {
		return false
	}
	_, free := av.memory(nodes)
	return memory <= free || !av.m.cfg.MemoryAffinity
}

// memory returns the bytes of NUMA nodes, and how many of them no other container is confined to
// that runs at the same time.
func (av available) memory(nodes topology.Set) (all, free int64) {
	all, free = av.m.memoryBeside(av.pod, nodes)
	return all, free - av.m.pods[av.pod].memory(nodes, av.lifetime, av.container)
}

// memoryBeside returns the bytes of NUMA nodes, and how many of them no container of another pod is confined
// to. m.mu is locked.
func (m *Manager) memoryBeside(uid types.UID, nodes topology.Set) (all, free int64) {
	for _, node := range nodes.IDs() {
		all += m.topology.Memory[node]
	}
	free = all
	for other, p := range m.pods {
		if other != uid {
			free -= p.memory(nodes, lifetime{}, "")
		}
	}
	return all, free
}

// lifetime says in which steps of its pod a container runs. There is one for each init container,
// and one for all regular containers. The zero value is that of the pod.
type lifetime struct {
	Step int  `json:"step,omitempty"` // in which it starts
	Once bool `json:"once,omitempty"` // it ends in that step, as ordinary init containers do
}

func lifetimeOf(pod *corev1.Pod, container *corev1.Container) lifetime {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == container.Name {
			return lifetime{Step: i, Once: !podspec.IsSidecar(c)}
		}
	}
	return lifetime{Step: len(pod.Spec.InitContainers)}
}

// includes reports whether the container runs in a step.
func (l lifetime) includes(step int) bool {
	return step == l.Step || step > l.Step && !l.Once
}

// memory returns the most that the containers of a pod, except one, have of the memory of NUMA
// nodes in any step of a lifetime.
func (p podState) memory(nodes topology.Set, during lifetime, except string) int64 {
	most := p.memoryIn(during.Step, nodes, except)
	for _, a := range p {
		if during.includes(a.Step) { // only where a container starts it becomes more
			most = max(most, p.memoryIn(a.Step, nodes, except))
		}
	}
	return most
}

// memoryIn returns what they have in one step.
func (p podState) memoryIn(step int, nodes topology.Set, except string) int64 {
	n := int64(0)
	for container, a := range p {
		if container != except && a.includes(step) {
			n += a.memoryOf(nodes)
		}
	}
	return n
}

// memoryOf returns how much of the memory of NUMA nodes a container has or is to get.
func (a assignment) memoryOf(nodes topology.Set) int64 {
	n := int64(0)
	if a.MemoryNodes.Intersect(nodes).Len() > 0 {
		n = a.Memory
	}
	if a.previous != nil {
		n = max(n, a.previous.memoryOf(nodes))
	}
	return n
}

// reusable returns the CPUs of init containers that end before the container starts, and that
// no other container has taken over. Sidecars keep theirs. m.mu is locked.
func (m *Manager) reusable(pod *corev1.Pod, container string) topology.Set {
	state := m.pods[pod.UID]
	isInit := map[string]bool{}
	var ended, kept topology.Set
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			break
		}
		isInit[c.Name] = !podspec.IsSidecar(c)
	}
	for owner, a := range state {
		switch {
		case owner == container:
		case isInit[owner]:
			ended = ended.Union(a.CPUs)
		default:
			kept = kept.Union(a.CPUs)
		}
	}
	return ended.Minus(kept)
}
