package cpumanager

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/topology"
)

// CPUs returns the exclusive CPUs of a container, as the pod resources API has them. While the
// stored assignments cannot be read, there are none.
func (m *Manager) CPUs(uid types.UID, container string) topology.Set {
	return m.reported(uid, container).CPUs
}

// Memory returns the NUMA nodes to which the memory of a container is confined, and how many bytes of
// it are set aside there, as the pod resources API has them. There are no nodes if it is not confined.
func (m *Manager) Memory(uid types.UID, container string) (nodes topology.Set, bytes int64) {
	a := m.reported(uid, container)
	return a.MemoryNodes, a.Memory
}

// reported returns what a container has.
func (m *Manager) reported(uid types.UID, container string) assignment {
	m.file.ReportOnce(m.load(), func(err error) { m.cfg.Logger.Error("cpu assignments not reported", logattr.Err(err)) })
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[uid][container].effective()
}

// AllocatableCPUs returns the CPUs that can be exclusive. With Options.FullPCPUsOnly these are whole cores.
func (m *Manager) AllocatableCPUs() topology.Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.allocatable()
}

// HugePages returns how many bytes of huge pages of each size are set aside for a container, on the NUMA nodes that
// Memory returns. The caller owns the result.
func (m *Manager) HugePages(uid types.UID, container string) map[corev1.ResourceName]int64 {
	return maps.Clone(m.reported(uid, container).HugePages)
}

// AllocatableMemory returns the bytes of each NUMA node that containers can be confined to, without those that are
// reserved. There are none without Config.MemoryAffinity.
func (m *Manager) AllocatableMemory() map[int]int64 {
	if !m.cfg.MemoryAffinity {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[int]int64{}
	for node := range m.topology.Memory {
		out[node] = m.allocatableMemory(corev1.ResourceMemory, node)
	}
	return out
}

// AllocatableHugePages is AllocatableMemory for the huge pages of each size.
func (m *Manager) AllocatableHugePages() map[int]map[corev1.ResourceName]int64 {
	if !m.cfg.MemoryAffinity {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[int]map[corev1.ResourceName]int64{}
	for node, pages := range m.topology.HugePages {
		out[node] = map[corev1.ResourceName]int64{}
		for name := range pages {
			out[node][name] = m.allocatableMemory(name, node)
		}
	}
	return out
}

// Usage returns how many CPUs containers share, without the reserved ones, and how many of each NUMA node
// containers have for themselves or are to get. While the stored assignments cannot be read, all are shared.
func (m *Manager) Usage() (shared int, exclusive map[int]int) {
	m.file.ReportOnce(m.load(), func(err error) { m.cfg.Logger.Error("cpu assignments not reported", logattr.Err(err)) })
	m.mu.Lock()
	defer m.mu.Unlock()
	cpus, exclusive := m.exclusive(), map[int]int{}
	for _, node := range m.topology.Nodes().IDs() {
		exclusive[node] = m.topology.CPUsOf(topology.NewSet(node)).Intersect(cpus).Len()
	}
	return m.free().Len(), exclusive
}

// HasUnreleased implements podsync.EarlyReleaser: it reports whether the pod has CPUs that are not released. A scheduler gives
// them to another pod once this one is reported as ended. While the stored assignments cannot be read, none are given to others.
func (m *Manager) HasUnreleased(pod *corev1.Pod) bool {
	if m.load() != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pods[pod.UID]) > 0
}

// PodUIDs implements podsync.StoredReleaser: it returns the pods that have exclusive CPUs.
func (m *Manager) PodUIDs() ([]types.UID, error) {
	if err := m.load(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.snapshot().Pods)), nil
}
