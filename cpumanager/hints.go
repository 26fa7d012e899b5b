package cpumanager

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/topology"
)

// The Manager provides CPUs, and memory that is near them.
var _ topology.Provider = (*Manager)(nil)

// Hints implements topology.Provider.
func (m *Manager) Hints(pod *corev1.Pod, container *corev1.Container) [][]topology.Hint {
	n := ExclusiveCPUs(pod, container)
	if n == 0 || !m.ready() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.pods[pod.UID][container.Name]
	if ok && m.isFor(a, n) && m.missingMemory(a, container) <= 0 {
		return [][]topology.Hint{{{Nodes: m.topology.NodesOf(a.CPUs), Preferred: true}}}
	}
	requests, available := memoryRequests(container), m.availableTo(pod, container)
	// A container that is resized stays in its NUMA nodes if it can.
	if nodes := m.topology.NodesOf(a.effective().CPUs); available.fits(nodes, n, requests) {
		return [][]topology.Hint{{{Nodes: nodes, Preferred: true}}}
	}
	if !m.isAligned(n) {
		return nil // Reserve says why it is rejected
	}
	lent := available.ended.Intersect(m.topology.Online())
	allocatableIn, lentIn, availableIn := m.counter(m.allocatable()), m.counter(lent), m.counter(available.cpus)
	hints := [][]topology.Hint{topology.MakeHints(m.topology.Nodes(), int64(n), func(nodes topology.Set) (int64, int64) {
		if lentIn(nodes) < int64(min(n, lent.Len())) { // with others the pod would have more than it was scheduled with
			return allocatableIn(nodes), 0
		}
		return allocatableIn(nodes), availableIn(nodes)
	})}
	return append(hints, m.memoryHints(requests, available.memory)...)
}

// counter returns what counts how many of the CPUs are in NUMA nodes: there may be many sets of nodes. m.mu is locked.
func (m *Manager) counter(cpus topology.Set) func(nodes topology.Set) int64 {
	in := map[int]int64{}
	for _, c := range m.topology.CPUs {
		if cpus.Contains(c.ID) {
			in[c.Node]++
		}
	}
	return func(nodes topology.Set) (n int64) {
		for _, node := range nodes.IDs() {
			n += in[node]
		}
		return n
	}
}

// ready reports whether CPUs can be set aside already. Without it a container gets its CPUs
// when it is created.
func (m *Manager) ready() bool {
	if err := m.load(); err != nil {
		m.cfg.Logger.Warn("cpu assignments not read", logattr.Err(err))
		return false
	}
	return m.isRestored()
}

// Reserve implements topology.Provider.
func (m *Manager) Reserve(pod *corev1.Pod, container *corev1.Container, nodes topology.Set) error {
	n := ExclusiveCPUs(pod, container)
	if n == 0 || !m.ready() {
		return nil
	}
	m.readHugePages(pod, container)
	m.mu.Lock()
	err := m.reserve(pod, container, n, nodes)
	m.mu.Unlock()
	m.requested(pod, container, n, err)
	return err
}

// requested calls the hook for a container that requests n CPUs.
func (m *Manager) requested(pod *corev1.Pod, container *corev1.Container, n int, err error) {
	if m.cfg.Hooks.Requested == nil {
		return
	}
	r := Request{UID: pod.UID, Container: container.Name, CPUs: n, Err: err}
	if m.cfg.MemoryAffinity {
		r.Memory = memoryRequest(container)
	}
	m.mu.Lock()
	r.IsConfined = m.pods[pod.UID][container.Name].MemoryNodes.Len() > 0
	m.mu.Unlock()
	m.cfg.Hooks.Requested(r)
}

// KeepReserved implements topology.Provider.
func (m *Manager) KeepReserved(keep func(uid types.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, p := range m.pods {
		if keep(uid) {
			continue
		}
		for container, a := range p {
			if p[container] = a.effective(); p[container].CPUs.Len() == 0 {
				delete(p, container)
			}
		}
		if len(p) == 0 {
			delete(m.pods, uid)
		}
	}
}
