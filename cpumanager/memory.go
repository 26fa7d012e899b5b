package cpumanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// amounts are bytes of memory and of huge pages by size, as pods request them.
type amounts map[corev1.ResourceName]int64

// least returns the smallest one, 0 if there are none.
func (a amounts) least() int64 {
	n := int64(0)
	for _, v := range a {
		n = min(n, v)
	}
	return n
}

// memoryRequests returns the memory and huge pages that a container requests.
func memoryRequests(container *corev1.Container) amounts {
	requests := hugePageRequests(container)
	if n := memoryRequest(container); n > 0 {
		if requests == nil {
			requests = amounts{}
		}
		requests[corev1.ResourceMemory] = n
	}
	return requests
}

func memoryRequest(container *corev1.Container) int64 {
	q := container.Resources.Requests[corev1.ResourceMemory]
	return q.Value()
}

// hugePageRequests returns the huge pages that a container requests, which are its limits; nil without.
func hugePageRequests(container *corev1.Container) amounts {
	var requests amounts
	for name, q := range container.Resources.Limits {
		if podspec.IsHugePages(name) && q.Sign() > 0 {
			if requests == nil {
				requests = amounts{}
			}
			requests[name] = q.Value()
		}
	}
	return requests
}

// podMemoryRequests returns what the containers of a pod that are to be confined request at any one time.
func podMemoryRequests(pod *corev1.Pod) amounts {
	requests := amounts{}
	for c := range podspec.Containers(pod) {
		if ExclusiveCPUs(pod, c) > 0 {
			maps.Copy(requests, memoryRequests(c))
		}
	}
	for name := range requests {
		requests[name] = topology.MostTogether(pod, func(c *corev1.Container) int64 {
			if ExclusiveCPUs(pod, c) == 0 {
				return 0
			}
			return memoryRequests(c)[name]
		})
	}
	return requests
}

// memoryHints returns a hint for those NUMA nodes that have all that is requested, where counter returns what counts
// how much there is of one resource.
func (m *Manager) memoryHints(requests amounts, counter func(name corev1.ResourceName) memoryCounter) [][]topology.Hint {
	if !m.cfg.MemoryAffinity || len(requests) == 0 {
		return nil
	}
	counters := map[corev1.ResourceName]memoryCounter{}
	for name := range requests {
		counters[name] = counter(name)
	}
	return [][]topology.Hint{topology.MakeHints(m.topology.Nodes(), 1, func(nodes topology.Set) (all, available int64) {
		all, available = 1, 1
		for name, n := range requests {
			of, free := counters[name](nodes)
			if of < n {
				all = 0
			}
			if free < n {
				available = 0
			}
		}
		return all, available
	})}
}

// fits reports whether these NUMA nodes have n CPUs, and the memory if that counts.
func (av available) fits(nodes topology.Set, n int, requests amounts) bool {
	cpus := av.m.topology.CPUsOf(nodes)
	if _, ok := av.keeps(n, cpus); !ok && av.cpus.Intersect(cpus).Len() < n {
		return false
	}
	return !av.m.cfg.MemoryAffinity || av.fitsMemory(nodes, requests)
}

// fitsMemory reports whether the container has the memory of these NUMA nodes, or can get it.
func (av available) fitsMemory(nodes topology.Set, requests amounts) bool {
	has := av.m.pods[av.pod][av.container].effective()
	for name, n := range requests {
		if has.MemoryNodes.Len() > 0 && has.MemoryNodes.Equal(nodes) && n <= has.amount(name) {
			continue // it stays, also if more is reserved than before
		}
		if _, free := av.memory(name)(nodes); n > free {
			return false
		}
	}
	return true
}

// findsHugePages reports whether these NUMA nodes had the huge pages when they were last read: containers that are
// not confined may have taken some. One that has been confined there before has its own.
func (av available) findsHugePages(nodes topology.Set, requests amounts) bool {
	if av.m.topology.FreeHugePages == nil || av.m.pods[av.pod][av.container].effective().MemoryNodes.Equal(nodes) {
		return true
	}
	for name, n := range requests {
		free := int64(0)
		for _, node := range nodes.IDs() {
			free += av.m.topology.FreeHugePages[node][name]
		}
		if name != corev1.ResourceMemory && n > free {
			return false
		}
	}
	return true
}

// readHugePages reads which huge pages are free for a container that has none yet.
func (m *Manager) readHugePages(pod *corev1.Pod, container *corev1.Container) {
	if !m.cfg.MemoryAffinity || hugePageRequests(container) == nil {
		return
	}
	m.mu.Lock()
	_, known := m.pods[pod.UID][container.Name]
	m.mu.Unlock()
	if !known {
		m.refreshTopology()
	}
}

// allocatableMemory returns the bytes of a NUMA node that containers can be confined to. m.mu is locked.
func (m *Manager) allocatableMemory(name corev1.ResourceName, node int) int64 {
	return max(memoryOf(m.topology, name, node)-m.reserved[node][name], 0)
}

// memoryOf returns the bytes that a NUMA node has.
func memoryOf(t topology.Topology, name corev1.ResourceName, node int) int64 {
	if name == corev1.ResourceMemory {
		return t.Memory[node]
	}
	return t.HugePages[node][name]
}

func (a assignment) amount(name corev1.ResourceName) int64 {
	if name == corev1.ResourceMemory {
		return a.Memory
	}
	return a.HugePages[name]
}

// confines reports whether an assignment confines what the container requests. Memory that is not confined does
// not count.
func (m *Manager) confines(a assignment, container *corev1.Container) bool {
	return !m.cfg.MemoryAffinity || a.MemoryNodes.Len() == 0 || memoryRequest(container) == a.Memory && maps.Equal(a.HugePages, hugePageRequests(container))
}

// missingMemory returns how much more memory the container requests than the assignment confines,
// less than 0 if it requests less. Memory that is not confined does not count.
func (m *Manager) missingMemory(a assignment, container *corev1.Container) int64 {
	if !m.cfg.MemoryAffinity || a.MemoryNodes.Len() == 0 {
		return 0
	}
	return memoryRequest(container) - a.Memory
}

// pinMemory keeps the memory of a container in the NUMA nodes of its CPUs, if it fits there with its huge pages, and
// in no nodes otherwise. m.mu is locked.
func (m *Manager) pinMemory(pod *corev1.Pod, container *corev1.Container, a *assignment) {
	if !m.cfg.MemoryAffinity {
		return
	}
	nodes, requests := m.topology.NodesOf(a.CPUs).Intersect(m.nodesWithMemory()), memoryRequests(container)
	a.MemoryNodes, a.Memory, a.HugePages, a.lifetime = topology.Set{}, 0, nil, lifetime{}
	if available := m.availableTo(pod, container); available.fitsMemory(nodes, requests) && available.findsHugePages(nodes, requests) {
		a.MemoryNodes, a.Memory, a.HugePages, a.lifetime = nodes, memoryRequest(container), hugePageRequests(container), lifetimeOf(pod, container)
	}
}

// reservedMemory returns Config.ReservedMemory, which must be memory of the machine.
func reservedMemory(lists map[int]corev1.ResourceList, t topology.Topology) (map[int]amounts, error) {
	reserved, nodes := map[int]amounts{}, t.Nodes().Union(topology.NewSet(slices.Collect(maps.Keys(t.Memory))...))
	var errs []error
	fail := func(node int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("cpumanager: Config.ReservedMemory: NUMA node %d "+format, append([]any{node}, args...)...))
	}
	for _, node := range slices.Sorted(maps.Keys(lists)) {
		if !nodes.Contains(node) {
			fail(node, "does not exist; this machine has %s", nodes)
			continue
		}
		reserved[node] = amounts{}
		for _, name := range slices.Sorted(maps.Keys(lists[node])) {
			q := lists[node][name]
			has := memoryOf(t, name, node)
			switch {
			case name != corev1.ResourceMemory && !podspec.IsHugePages(name):
				fail(node, "has no resource %s: must be memory, or hugepages-<size>", name)
			case q.Sign() < 0:
				fail(node, "cannot keep %s of %s", q.String(), name)
			case q.Value() > has && len(t.Memory) > 0: // without NUMA it is not known
				fail(node, "has %s of %s, and not the %s that are reserved", resource.NewQuantity(has, resource.BinarySI).String(), name, q.String())
			default:
				reserved[node][name] = q.Value()
			}
		}
	}
	return reserved, errors.Join(errs...)
}
