package cpumanager

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/topology"
)

// reserve sets n CPUs and its memory aside for a container that has others, from these NUMA nodes
// if possible. m.mu is locked.
func (m *Manager) reserve(pod *corev1.Pod, container *corev1.Container, n int, nodes topology.Set) error {
	current, ok := m.current(pod, container, n)
	if ok && m.suffices(current, n, container) {
		return nil
	}
	a := assignment{reserved: true}
	switch {
	case ok && !current.reserved:
		a.previous = &current
	case current.previous != nil:
		a.previous = current.previous
	}
	available, near := m.availableTo(pod, container), m.topology.CPUsOf(nodes)
	if a.CPUs, ok = available.keeps(n, near); !ok {
		a.CPUs, ok = available.pick(n, near)
	}
	if !ok {
		return m.notEnough(container, n, available.cpus)
	}
	m.pinMemory(pod, container, &a)
	if m.pods[pod.UID] == nil {
		m.pods[pod.UID] = podState{}
	}
	m.pods[pod.UID][container.Name] = a
	return nil
}

// pick returns n CPUs for the container, of the near ones if possible.
func (av available) pick(n int, near topology.Set) (cpus topology.Set, ok bool) {
	if !av.m.isAligned(n) {
		return topology.Set{}, false
	}
	own, free := av.own, av.cpus
	reusable := own.Union(av.ended)
	// First its own ones, and those of init containers that have ended, so that the others
	// stay free: the pod was scheduled with no more.
	preferred, lent := free.Intersect(near), av.m.usable(av.ended.Intersect(free).Intersect(av.m.topology.Online()))
	lentNear := lent.Intersect(near)
	for _, from := range []struct{ all, rest topology.Set }{
		{rest: own.Intersect(near)},
		{rest: reusable.Intersect(near)},
		{all: lentNear, rest: preferred.Intersect(av.m.topology.CPUsOf(av.m.topology.NodesOf(lentNear))).Minus(lentNear)},
		{all: lentNear, rest: preferred.Minus(lentNear)},
		{rest: preferred},
		{all: preferred.Union(lent), rest: free.Minus(preferred).Minus(lent)}, // too few: all of them, and others
		{all: preferred, rest: free.Minus(preferred)},
		{rest: free}, // where cores differ in how many CPUs they have
	} {
		if cpus, ok = av.m.topology.PickBy(av.m.cfg.Options.Preferences(), from.rest, n-from.all.Len()); ok {
			return cpus.Union(from.all), true
		}
	}
	return topology.Set{}, false
}

// current returns the assignment of a container, without a resize that was taken back. m.mu is
// locked.
func (m *Manager) current(pod *corev1.Pod, container *corev1.Container, n int) (assignment, bool) {
	a, ok := m.pods[pod.UID][container.Name]
	if a.previous != nil && m.suffices(*a.previous, n, container) {
		a = *a.previous
		m.pods[pod.UID][container.Name] = a
	}
	return a, ok
}

// suffices reports whether an assignment is what the container requests. m.mu is locked.
func (m *Manager) suffices(a assignment, n int, container *corev1.Container) bool {
	return m.isFor(a, n) && m.confines(a, container)
}
