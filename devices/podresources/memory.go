package podresources

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/sublet-dev/agent/topology"
)

// memoryOf returns the memory and huge pages to which a container is confined, none if it is not.
func (s *Server) memoryOf(uid types.UID, container string) []*api.ContainerMemory {
	if s.cfg.Memory == nil {
		return nil
	}
	nodes, bytes := s.cfg.Memory.Memory(uid, container)
	if nodes.Len() == 0 {
		return nil
	}
	entries := []*api.ContainerMemory{containerMemory(corev1.ResourceMemory, nodes, bytes)}
	if s.cfg.HugePages == nil {
		return entries
	}
	return append(entries, hugePages(nodes, s.cfg.HugePages.HugePages(uid, container))...)
}

// allocatableMemory returns what containers can have of each NUMA node, where there is something.
func (s *Server) allocatableMemory() []*api.ContainerMemory {
	if s.cfg.Memory == nil {
		return nil
	}
	var entries []*api.ContainerMemory
	memory, pages := s.cfg.Memory.AllocatableMemory(), map[int]map[corev1.ResourceName]int64{}
	if s.cfg.HugePages != nil {
		pages = s.cfg.HugePages.AllocatableHugePages()
	}
	ids := topology.NewSet(append(slices.Collect(maps.Keys(memory)), slices.Collect(maps.Keys(pages))...)...).IDs()
	for _, id := range ids {
		node := topology.NewSet(id)
		if memory[id] > 0 {
			entries = append(entries, containerMemory(corev1.ResourceMemory, node, memory[id]))
		}
		entries = append(entries, hugePages(node, pages[id])...)
	}
	return entries
}

// hugePages returns an entry for each size of which there are some.
func hugePages(nodes topology.Set, pages map[corev1.ResourceName]int64) []*api.ContainerMemory {
	var entries []*api.ContainerMemory
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		if pages[name] > 0 {
			entries = append(entries, containerMemory(name, nodes, pages[name]))
		}
	}
	return entries
}

func containerMemory(name corev1.ResourceName, nodes topology.Set, bytes int64) *api.ContainerMemory {
	entry := &api.ContainerMemory{MemoryType: string(name), Size: uint64(max(bytes, 0)), Topology: &api.TopologyInfo{}}
	for _, id := range nodes.IDs() {
		entry.Topology.Nodes = append(entry.Topology.Nodes, &api.NUMANode{ID: int64(id)})
	}
	return entry
}
