package cpumanager

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

var _ topology.PodProvider = (*Manager)(nil)

// PodHints implements topology.PodProvider.
func (m *Manager) PodHints(pod *corev1.Pod) [][]topology.Hint {
	n := topology.MostTogether(pod, func(c *corev1.Container) int64 { return int64(ExclusiveCPUs(pod, c)) })
	if n == 0 || !m.ready() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	own, complete := m.cpusOf(pod)
	if complete {
		return [][]topology.Hint{{{Nodes: m.topology.NodesOf(own), Preferred: true}}}
	}
	if !m.canAlign(pod) {
		return nil // Reserve says why it is rejected
	}
	own = own.Intersect(m.topology.Online()).Minus(m.cfg.Reserved)
	allocatableIn, ownIn, freeIn := m.counter(m.allocatable()), m.counter(own), m.counter(m.usable(m.free().Union(own)).Union(own))
	hints := [][]topology.Hint{topology.MakeHints(m.topology.Nodes(), n, func(nodes topology.Set) (int64, int64) {
		if ownIn(nodes) < min(n, int64(own.Len())) { // its other containers stay where they are
			return allocatableIn(nodes), 0
		}
		return allocatableIn(nodes), freeIn(nodes)
	})}
	return append(hints, m.memoryHints(podMemoryRequests(pod), func(name corev1.ResourceName) memoryCounter {
		return m.memoryBeside(pod.UID, name)
	})...)
}

// cpusOf returns the CPUs of all containers of a pod, and whether each has all that it is to have. m.mu is
// locked.
func (m *Manager) cpusOf(pod *corev1.Pod) (cpus topology.Set, complete bool) {
	complete = true
	for c := range podspec.Containers(pod) {
		n := ExclusiveCPUs(pod, c)
		if n == 0 {
			continue
		}
		a, ok := m.pods[pod.UID][c.Name]
		cpus = cpus.Union(a.all())
		complete = complete && ok && m.isFor(a, n) && m.missingMemory(a, c) <= 0
	}
	return cpus, complete
}

// canAlign reports whether each container of a pod can have whole cores, if these are required, or has its CPUs. m.mu is locked.
func (m *Manager) canAlign(pod *corev1.Pod) bool {
	for c := range podspec.Containers(pod) {
		n := ExclusiveCPUs(pod, c)
		if a := m.pods[pod.UID][c.Name]; !m.isAligned(n) && !m.isFor(a, n) {
			return false
		}
	}
	return true
}
