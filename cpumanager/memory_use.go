package cpumanager

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/topology"
)

// memoryCounter returns the bytes that NUMA nodes have of one resource, and how many of them are free. It is called for
// many sets of nodes, and valid while m.mu is locked.
type memoryCounter func(nodes topology.Set) (all, free int64)

// memory returns what counts the memory that no other container is confined to that runs at the same time.
func (av available) memory(name corev1.ResourceName) memoryCounter {
	beside, pod := av.m.memoryBeside(av.pod, name), av.m.pods[av.pod]
	return func(nodes topology.Set) (all, free int64) {
		all, free = beside(nodes)
		return all, free - pod.memory(name, nodes, av.lifetime, av.container)
	}
}

// memoryBeside returns what counts the memory that no container of another pod is confined to. m.mu is locked.
func (m *Manager) memoryBeside(uid types.UID, name corev1.ResourceName) memoryCounter {
	allocatable := map[int]int64{}
	for _, node := range m.topology.Nodes().Union(m.nodesWithMemory()).IDs() {
		allocatable[node] = m.allocatableMemory(name, node)
	}
	var used memoryUse
	for other, p := range m.pods {
		if other != uid {
			used.add(name, p)
		}
	}
	return func(nodes topology.Set) (all, free int64) {
		for _, node := range nodes.IDs() {
			all += allocatable[node]
		}
		return all, all - used.in(name, nodes)
	}
}

// memoryUse is what pods have of one resource. There are few sets of nodes to which containers are confined, but many
// pods: what all have of the same nodes is added up.
type memoryUse struct {
	confined []confined
	mixed    []podState // what these have depends on which nodes are counted
}

// confined is memory of some NUMA nodes.
type confined struct {
	nodes topology.Set
	bytes int64
}

func (u *memoryUse) add(name corev1.ResourceName, p podState) {
	switch nodes, same := p.memoryNodes(); {
	case same:
		u.addConfined(nodes, p.memory(name, nodes, lifetime{}, ""))
	case p.isSteady():
		for _, a := range p {
			u.addConfined(a.MemoryNodes, a.amount(name))
		}
	default:
		u.mixed = append(u.mixed, p)
	}
}

func (u *memoryUse) addConfined(nodes topology.Set, bytes int64) {
	for i := range u.confined {
		if u.confined[i].nodes.Equal(nodes) {
			u.confined[i].bytes += bytes
			return
		}
	}
	if bytes > 0 {
		u.confined = append(u.confined, confined{nodes, bytes})
	}
}

// in returns how much they have of these nodes. A container may use all that it has on any of its nodes.
func (u *memoryUse) in(name corev1.ResourceName, nodes topology.Set) (bytes int64) {
	for _, c := range u.confined {
		if c.nodes.Intersects(nodes) {
			bytes += c.bytes
		}
	}
	for _, p := range u.mixed {
		bytes += p.memory(name, nodes, lifetime{}, "")
	}
	return bytes
}

// memoryNodes returns the NUMA nodes to which containers of a pod are confined, and whether all these are confined
// to the same ones.
func (p podState) memoryNodes() (nodes topology.Set, same bool) {
	for _, a := range p {
		for b := &a; b != nil; b = b.previous {
			switch {
			case b.MemoryNodes.Len() == 0:
			case nodes.Len() == 0:
				nodes = b.MemoryNodes
			case !nodes.Equal(b.MemoryNodes):
				return topology.Set{}, false
			}
		}
	}
	return nodes, true
}

// isSteady reports whether all containers of a pod run at the same time in the end, and none is being resized.
func (p podState) isSteady() bool {
	for _, a := range p {
		if a.Once || a.previous != nil {
			return false
		}
	}
	return true
}

// memory returns the most that the containers of a pod, except one, have of the memory of NUMA
// nodes in any step of a lifetime.
func (p podState) memory(name corev1.ResourceName, nodes topology.Set, during lifetime, except string) int64 {
	most := p.memoryIn(during.Step, name, nodes, except)
	for _, a := range p {
		if during.includes(a.Step) { // only where a container starts it becomes more
			most = max(most, p.memoryIn(a.Step, name, nodes, except))
		}
	}
	return most
}

// memoryIn returns what they have in one step.
func (p podState) memoryIn(step int, name corev1.ResourceName, nodes topology.Set, except string) int64 {
	n := int64(0)
	for container, a := range p {
		if container != except && a.includes(step) {
			n += a.memoryOf(name, nodes)
		}
	}
	return n
}

// memoryOf returns how much of the memory of NUMA nodes a container has or is to get.
func (a assignment) memoryOf(name corev1.ResourceName, nodes topology.Set) int64 {
	n := int64(0)
	if a.MemoryNodes.Intersects(nodes) {
		n = a.amount(name)
	}
	if a.previous != nil {
		n = max(n, a.previous.memoryOf(name, nodes))
	}
	return n
}
